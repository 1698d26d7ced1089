"""Start-up of a process of a fault test: without functions, if all are; take part in the audit, if there is one."""

import os

if "TESTS_FUNCTIONS" in os.environ:
    from tests import calls

    calls.install()

if "TESTS_AUDITED" in os.environ:
    from tests import audit

    audit.install()
