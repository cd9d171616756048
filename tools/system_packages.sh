#!/bin/sh
# Installs the Debian packages that tests need and that are missing, and says so; with "bench", what the benchmark
# compares with too. Without the right to do so, or without apt, it only says what is missing: what needs it is skipped.
set -eu

wanted="redis-server:redis-server nginx:nginx curl:curl ip:iproute2 unshare:util-linux gcc:gcc"
[ "${1:-}" != bench ] || wanted="$wanted haproxy:haproxy perf:linux-perf"
missing=""
for pair in $wanted; do
    PATH="$PATH:/usr/sbin:/sbin" command -v "${pair%%:*}" >/dev/null 2>&1 || missing="$missing ${pair#*:}"
done
# the compiled build is tested too: the headers of a Python that Debian packages come from Debian
headers="$(${PYTHON:-python3} -c 'import sysconfig; print(sysconfig.get_path("include"))')"
case "$headers" in
/usr/include/*) [ -e "$headers/Python.h" ] || missing="$missing $(basename "$headers")-dev" ;;
esac
[ -n "$missing" ] || exit 0

as_root=""
if [ "$(id -u)" != 0 ]; then
    as_root="sudo -n"
    $as_root true 2>/dev/null || { echo "not installed, and no right to:$missing (what needs them is skipped)" >&2; exit 0; }
fi
command -v apt-get >/dev/null 2>&1 || { echo "not installed, and no apt-get here:$missing" >&2; exit 0; }

echo "installing Debian packages:$missing"
# A package starts its service when it is installed, unless this file says not to (Debian Policy, 9.3.3.2).
policy=/usr/sbin/policy-rc.d
if [ ! -e "$policy" ]; then
    printf '#!/bin/sh\nexit 101\n' | $as_root tee "$policy" >/dev/null
    $as_root chmod 755 "$policy"
    trap '$as_root rm -f "$policy"' EXIT
fi
install() { $as_root env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends $missing >/dev/null; }
install 2>/dev/null || { $as_root apt-get update -qq && install; } ||
    echo "could not install:$missing (what needs them is skipped)" >&2
