"""The page while the server is gone: it says so, keeps what it shows, and goes on after a restart."""

from __future__ import annotations

import pytest

from tests.web.page_fixtures import SHOWN, TIMEOUT_MS, browser  # noqa: F401
from tests.web.web_case import image_file, running_server, small_app

LOST, AGAIN = "#connection[data-state=lost]", "#connection[data-state=restored]"


@pytest.mark.slow
def test_page_reconnects_after_a_restart_and_sends_its_image_again(browser):  # noqa: F811
    page = browser.new_page()
    page.set_default_timeout(TIMEOUT_MS)
    with running_server(small_app()) as url:
        page.goto(f"{url}/?model=tiny&method=gradcam")
        page.wait_for_selector(SHOWN)
        page.set_input_files("#file", {"name": "a.png", "mimeType": "image/png", "buffer": image_file(40, 40)})
        page.wait_for_function("() => location.search.includes('image=')")
        page.wait_for_selector("#image-panel[aria-busy=false]")
        page.wait_for_selector(SHOWN)
        address = page.url
        script = "document.querySelector('script[type=module]').src"
        page.evaluate(f"import({script}).then(({{modules}}) => {{ window.api = modules['api.js']; }})")
    # The next request finds no server. It is not lost: it is sent again after the restart, with the image.
    page.evaluate("void window.api.models().then((models) => { window.answer = models.length; })")
    page.wait_for_selector(LOST)
    assert "Connection lost, retrying" in page.inner_text("#connection")
    assert page.query_selector(SHOWN) is not None
    with running_server(small_app(), port=int(url.rpartition(":")[2])):
        page.wait_for_selector(AGAIN)
        page.wait_for_function("() => window.answer === 1")
        predict = "({id}) => window.api.predict({model: 'tiny', picture: id})"
        image_id = address.partition("image=")[2].partition("&")[0]
        assert image_id
        assert page.evaluate(predict, {"id": image_id})["classes"] == 5
        assert page.query_selector(SHOWN) is not None
        page.close()
