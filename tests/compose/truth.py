"""Compares what the orchestrator lists with what platforms discover and with the processes that run.

truth.py NODES DISCOVERED... -- PROCESSES: NODES is the answer of ListNodes, DISCOVERED name=file for each platform with the
answers of Discover, PROCESSES the command lines in the container of local nodes. Prints what differs, and fails.
"""
import json
import re
import sys


def read(path):
    """All JSON documents of a file, one after another."""
    text, at, found = open(path).read(), 0, []
    decoder = json.JSONDecoder()
    while text[at:].strip():
        at += len(text[at:]) - len(text[at:].lstrip())
        document, at = decoder.raw_decode(text, at)
        found.append(document)
    return found


split = sys.argv.index("--")
nodes, discovered, processes = sys.argv[1], sys.argv[2:split], sys.argv[split + 1]
wrong = []
listed = [node for page in read(nodes) for node in page.get("nodes", [])]
names = [f"{node['cluster']}/{node['name']}" for node in listed]
wrong += [f"two nodes are called {name}" for name in set(names) if names.count(name) > 1]
running = re.findall(r"--node-id (\S+)", open(processes).read())
wrong += [f"{running.count(one)} processes of node {one}" for one in set(running) if running.count(one) > 1]

for pair in discovered:
    platform, path = pair.split("=", 1)
    there = [node["nodeId"] for page in read(path) for node in page.get("nodes", [])]
    known = [node.get("platformNodeId", "?") for node in listed if node["platform"] == platform]
    wrong += [f"{platform} shows {one} twice" for one in set(there) if there.count(one) > 1]
    wrong += [f"{platform} has {one}, which the orchestrator does not list" for one in sorted(set(there) - set(known))]
    wrong += [f"the orchestrator lists {one}, which {platform} does not have" for one in sorted(set(known) - set(there))]
    if platform == "local":
        ids = [node["id"] for page in read(path) for node in page.get("nodes", [])]
        wrong += [f"process of {one}, which is no node" for one in sorted(set(running) - set(ids))]
        wrong += [f"node {one} has no process" for one in sorted(set(ids) - set(running))]

print("\n".join(wrong) or f"{len(listed)} nodes, {len(running)} processes")
sys.exit(bool(wrong))
