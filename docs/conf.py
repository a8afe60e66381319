"""How `make docs` builds the site from the Markdown of this folder. A link that leads nowhere is an error."""

project = "milblob"
author = copyright = "the milblob developers"
extensions = ["myst_parser", "sphinx_copybutton", "sphinxcontrib.mermaid"]
myst_heading_anchors = 3  # the anchors that GitHub makes
myst_fence_as_directive = ["mermaid"]
html_theme = "furo"
html_title = "milblob"
html_show_sourcelink = False
copybutton_prompt_text = "$ "  # of a console, the commands are copied without their output
