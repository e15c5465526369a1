"""Where the elements of images and windows lie: order of axes, padding, positions that
a kernel or a resize reads.
"""
