"""Figures, charts and diagrams as SVG or PNG."""
