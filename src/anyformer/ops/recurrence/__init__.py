"""Recurrent cells and scans."""
