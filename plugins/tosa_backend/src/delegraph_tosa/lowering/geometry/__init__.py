"""Geometry of images and windows: order of axes, padding and positions to read."""
