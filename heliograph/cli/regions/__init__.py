"""Commands about what lies between regions: disaster recovery, links, audits, conflicts, a region's backup. They
only ask REST.
"""
