#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Restores on the GPU machine what prepare.py wrote. Needs Python 3.11.4 or later and no network.

Give it the folders of one transfer or of several; parts of earlier transfers are kept in the folder of the peers until their peer
is complete. Checks all sha256 sums."""
import argparse
import hashlib
import io
import json
import lzma
import shutil
import sys
import tarfile
import time
from pathlib import Path

from tables import PEERS


def main(given=None):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("transfers", nargs="+", type=Path, metavar="TRANSFER_DIR")
    parser.add_argument("--peers", type=Path, default=PEERS, metavar="FOLDER",
                        help="where to; default: $GIWA_PEERS, else giwa_peers in the temporary folder")
    arguments = parser.parse_args(given)
    kept = arguments.peers / "parts"
    kept.mkdir(parents=True, exist_ok=True)
    for folder in arguments.transfers:
        manifest = json.loads((folder / "manifest.json").read_text(encoding="utf-8"))
        for peer, what in manifest["peers"].items():
            begin, done = time.time(), kept / f"{peer}.done"
            if done.exists() and done.read_text() == what["sha256"]:
                continue
            for part in what["parts"]:
                source, to = folder / part["name"], kept / part["name"]
                if not source.exists():
                    continue
                if hashlib.sha256(source.read_bytes()).hexdigest() != part["sha256"]:
                    sys.exit(f"{source} is damaged: its sha256 is not the manifest's")
                shutil.copyfile(source, to)
            parts = [kept / x["name"] for x in what["parts"]]
            if missing := [x.name for x in parts if not x.exists()]:
                print(f"{peer}: waits for {', '.join(missing)}")
                continue
            data = lzma.decompress(b"".join(x.read_bytes() for x in parts))
            if hashlib.sha256(data).hexdigest() != what["sha256"]:
                sys.exit(f"{peer}: the parts are of another manifest; remove {kept}")
            with tarfile.open(fileobj=io.BytesIO(data)) as tar:
                tar.extractall(arguments.peers, filter="data")
            for x in parts:
                x.unlink()
            done.write_text(what["sha256"])
            print(f"{peer}: {what['files']} files, {len(data) / 1e6:.0f} MB, {time.time() - begin:.1f} s", flush=True)


if __name__ == "__main__":
    main()
