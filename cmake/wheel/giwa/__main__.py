# SPDX-License-Identifier: MIT
"""Prints the folders of giwa, for a command line or a build script."""
import argparse

import giwa

parser = argparse.ArgumentParser(prog="python3 -m giwa", description=__doc__)
what = parser.add_mutually_exclusive_group(required=True)
what.add_argument("--include", action="store_const", dest="text", const=giwa.include(), help="the folder for a compiler's -I")
what.add_argument("--cmake-dir", action="store_const", dest="text", const=giwa.cmake_dir(), help="the folder for CMake's -Dgiwa_DIR")
what.add_argument("--version", action="store_const", dest="text", const=giwa.__version__)
print(parser.parse_args().text)
