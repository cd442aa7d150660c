"""Drawing: colour maps, figures, HTML pages and coloured text."""
