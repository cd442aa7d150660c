"""Drawing: colour maps and overlays, matplotlib figures, HTML pages, coloured text."""
