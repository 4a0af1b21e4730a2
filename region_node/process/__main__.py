"""`python -m region_node.process --settings FILE.json`: one process of a region."""

from region_node.process.role_process import main

if __name__ == "__main__":
    main()
