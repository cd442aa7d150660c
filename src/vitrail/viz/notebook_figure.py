"""Matplotlib figures that notebooks display although they belong to no window."""

from __future__ import annotations

from io import BytesIO

from matplotlib.figure import Figure

#: Dots per inch in a notebook; files have those of the figure.
DISPLAY_DPI = 100


class NotebookFigure(Figure):
    """A figure that is not attached to a window and shows itself as the result of a cell.

    Example:
        >>> NotebookFigure(figsize=(1, 1))._repr_png_()[1:4]
        b'PNG'
    """

    def _repr_png_(self) -> bytes:
        stream = BytesIO()
        self.savefig(stream, format="png", dpi=DISPLAY_DPI)
        return stream.getvalue()
