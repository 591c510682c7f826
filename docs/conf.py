"""How Sphinx builds this documentation: MyST Markdown, the furo theme."""

from importlib.metadata import version as installed_version

project = "vramkit"
author = "The vramkit authors"
copyright = "The vramkit authors"
version = release = installed_version("vramkit")

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
myst_enable_extensions = ["colon_fence", "deflist"]
myst_heading_anchors = 3
autodoc_typehints = "description"
autodoc_member_order = "bysource"

html_theme = "furo"
html_title = f"vramkit {release}"
