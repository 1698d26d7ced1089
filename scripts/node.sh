#!/bin/sh
# Install the queues of Node that benchmarks compare with, where npm is; without them they are left out.
set -u
folder=.venv/node
[ -d "$folder/node_modules/graphile-worker" ] && exit 0
if ! command -v node >/dev/null || ! command -v npm >/dev/null; then
    echo "no node or no npm: graphile-worker is left out" >&2
    exit 0
fi
mkdir -p "$folder"
# The last release of graphile-worker for Node 20.
npm install --silent --no-audit --no-fund --prefix "$folder" graphile-worker@0.17.3 ||
    echo "npm cannot install graphile-worker: it is left out" >&2
