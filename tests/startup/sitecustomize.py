"""What a process of a fault test does before anything else: take part in the audit, if there is one."""

import os

if "TESTS_AUDITED" in os.environ:
    from tests import audit

    audit.install()
