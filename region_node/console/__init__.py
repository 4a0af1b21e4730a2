"""The console: a web page of a region and its links, for who operates them and for tenants.

Is: `static/`, one HTML file, one style sheet, and ES modules as a browser takes them; no build step, nothing from
elsewhere. Isn't: a source of data, or a
right: the page asks the admin interface with the token of whoever sits before it
(`region_node.faces.admin.server.console_server` serves it).
"""
