"""One script of all modules of the page: each in front of those that import it, with its exports."""

from __future__ import annotations

from importlib.resources import files

from vitrail.web.script_bundle import EXPORT, IMPORT, bundle_modules

STATIC = files("vitrail.web").joinpath("static")


def test_modules_stand_before_those_that_import_them(tmp_path):
    first = ['import { two as second } from "./b.js";', 'import * as c from "./c.js";', "second(c.one);"]
    (tmp_path / "a.js").write_text("\n".join(first))
    second = ["import {", "  one,", '} from "./c.js";', "export async function two() {", "  return one;", "}"]
    (tmp_path / "b.js").write_text("\n".join(second))
    (tmp_path / "c.js").write_text("export const one = 1;\nexport class Three {}\n")
    script = bundle_modules(tmp_path, "a.js")
    assert [line for line in script.splitlines() if line.startswith("modules[")] == [
        f'modules["{name}.js"] = (() => {{' for name in "cba"
    ]
    for part in (
        'const { two: second } = modules["b.js"];', 'const c = modules["c.js"];',
        'const {\n  one,\n} = modules["c.js"];',
        "return { one, Three };", "return { two };", "return {  };", "\nasync function two() {",
    ):  # fmt: skip
        assert part in script, part


def test_no_import_or_export_of_the_page_is_left():
    script = bundle_modules(STATIC, "page.js")
    first, *lines = script.splitlines()
    assert first == "export const modules = {};"
    left = [line for line in lines if line.startswith(("import ", "export "))]
    assert not left, "the bundle joins imports from ./name.js, and exported functions, classes and constants"
    modules = [path.read_text("utf-8") for path in STATIC.iterdir() if path.name.endswith(".js")]
    joined = script.count('modules["') - sum(len(IMPORT.findall(text)) for text in modules)
    assert joined == len(modules) - 1, "all but theme.js, which runs before the page is drawn"
    assert sum(len(EXPORT.findall(text)) for text in modules) > 100
