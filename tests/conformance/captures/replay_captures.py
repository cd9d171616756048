#!/usr/bin/env python3
"""Replays the recorded client requests through a proxy and compares what the recording origin received.
  replay_captures.py --target 127.0.0.1:8080 (--origin 127.0.0.1:18080 | --control ...)
PASS = same method, same target, byte-identical body, every end-to-end header unchanged (name case ignored), nothing doubled."""
import argparse, json, os, socket, sys, time
HERE = os.path.dirname(os.path.abspath(__file__)); sys.path.insert(0, os.path.join(HERE, "..", "smuggle"))
import origin as om, rawhttp
HOP = {"connection", "keep-alive", "proxy-connection", "te", "trailer", "transfer-encoding", "upgrade", "host", "content-length"}
ap = argparse.ArgumentParser(); ap.add_argument("--target", required=True); ap.add_argument("--origin"); ap.add_argument("--control"); ap.add_argument("--fragment", type=int, default=0); ap.add_argument("-v", action="store_true"); a = ap.parse_args()
og = om.RemoteOrigin(*om.hp(a.control)) if a.control else om.Origin(*om.hp(a.origin)); bad = ok = 0
for l in open(os.path.join(HERE, "fixtures", "index.jsonl")):
    d = json.loads(l)
    if not d["file"].endswith(".http1"): continue
    raw = open(os.path.join(HERE, "fixtures", d["file"]), "rb").read(); og.reset(True); time.sleep(0.03)
    s = socket.create_connection(om.hp(a.target), 5); s.settimeout(5); step = a.fragment or len(raw)
    for k in range(0, len(raw), step): s.sendall(raw[k:k + step])
    buf, why = b"", []
    try:
        while True:
            st, end, info = rawhttp.parse_response(buf, 0, d["method"], False)
            if st != "incomplete": break
            x = s.recv(65536)
            if not x: break
            buf += x
    except OSError as e: why.append(repr(e))
    s.close(); sent = rawhttp.parse_request(raw)[2]; reqs, errs = [], []
    for c in og.log():
        r, tail, e, off, i = rawhttp.split_stream(bytes.fromhex(c["hex"])); reqs += r; errs += [e] if e else []
    if errs: why.append("origin bytes: %s" % errs)
    if st != "ok" or info.get("status") != 200: why.append("answer %s %s" % (st, info.get("status")))
    if len(reqs) != 1: why.append("origin saw %d requests" % len(reqs))
    else:
        r = reqs[0]
        if (r["method"], r["target"]) != (sent["method"], sent["target"]): why.append("%s %s" % (r["method"], r["target"]))
        if r["body"] != sent["body"]: why.append("body differs (%d/%d bytes)" % (len(r["body"]), len(sent["body"])))
        for n, v in sent["headers"]:
            if n.lower() in HOP: continue
            got = [y for x, y in r["headers"] if x.lower() == n.lower()]
            if got != [y for x, y in sent["headers"] if x.lower() == n.lower()]: why.append("header %s: %r -> %r" % (n, v, got))
        names = {x.lower() for x, _ in sent["headers"]}
        extra = sorted({x.lower() for x, _ in r["headers"]} - names - HOP)
        if extra and a.v: print("   added by the proxy:", extra)
        for x in ("content-type", "accept", "accept-encoding", "user-agent"):
            if x in extra: why.append("proxy invented %s: %s" % (x, [v for n, v in r["headers"] if n.lower() == x]))
    print("%s %-28s %s %s" % ("FAIL" if why else "PASS", d["file"], d["target"], "; ".join(why)[:200]) if why else "", end="\n" if why else "")
    ok += not why; bad += bool(why)
print("%d passed, %d failed" % (ok, bad)); sys.exit(bool(bad))
