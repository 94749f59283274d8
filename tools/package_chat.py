"""Conversations about Debian packages, to fine-tune on: `python tools/package_chat.py descriptions.jsonl.gz`

Each line of the data has `split`, `package` and `synopsis`. Prints JSON lines with `split` and `messages`: a user asks
what a package is, the assistant answers with its synopsis. 240 conversations for training, 24 for validation and 120
for the test are spread evenly over the packages of each split whose synopsis has less than 60 characters.
"""

import gzip
import json
import sys

COUNTS = {"train": 240, "valid": 24, "test": 120}
LONGEST = 60


def main() -> None:
    with gzip.open(sys.argv[1], "rt", encoding="utf-8") as stream:
        rows = [row for row in map(json.loads, stream) if len(row["synopsis"]) < LONGEST]
    for split, count in COUNTS.items():
        packages = [row for row in rows if row["split"] == split]
        for row in packages[:: len(packages) // count][:count]:
            turns = {"user": f"What is the Debian package {row['package']}?", "assistant": row["synopsis"]}
            messages = [{"role": role, "content": text} for role, text in turns.items()]
            print(json.dumps({"split": split, "messages": messages}))


if __name__ == "__main__":
    main()
