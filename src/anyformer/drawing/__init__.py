"""Figures and diagrams as SVG or PNG."""
