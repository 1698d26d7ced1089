"""Start-up of a process of a fault test: take part in the audit, if there is one."""

import os

if "TESTS_AUDITED" in os.environ:
    from tests import audit

    audit.install()
