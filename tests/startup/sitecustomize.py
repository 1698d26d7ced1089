"""Start-up of a process of a fault test: switch functions off and the audit on, as the environment says."""

import os

if "TESTS_FUNCTIONS" in os.environ:
    from tests import calls

    calls.install()

if "TESTS_AUDITED" in os.environ:
    from tests import audit

    audit.install()
