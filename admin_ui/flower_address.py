"""Where Flower's pages are: its own `url_prefix`, and the path under which the web passes them on."""

FLOWER_PREFIX = "admin/flower"
