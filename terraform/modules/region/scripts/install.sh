#!/bin/sh
# Installs a release beside the one in use: an environment of its own below PREFIX/releases. What is complete already is left alone.
# install.sh PREFIX RELEASE PYTHON WHEELS USER PIP_OPTIONS PACKAGE...
# WHEELS: the folder of all wheels that were carried here, and nothing else is taken; empty: pip asks the host's package index.
# WHEELS.sums: the sum of each, as sha256sum writes them where they were carried from.
set -eu
umask 022 # the processes' user reads what root makes here
prefix=$1 release=$2 python=$3 wheels=$4 user=$5 options=$6
shift 6
target=$prefix/releases/$release
mkdir -p "$prefix/releases"
if [ -n "$user" ] && ! id "$user" >/dev/null 2>&1; then
  useradd --system --home-dir "$prefix" --shell /usr/sbin/nologin "$user"
fi
if [ ! -e "$target/complete" ]; then
  rm -rf "$target"
  if ! "$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))'; then
    echo "the host's $python is older than 3.11, or is absent: install a newer one, or name it by the variable python" >&2
    exit 2
  fi
  base=$("$python" -c 'import sys; print(sys.base_prefix)')
  case $user:$base/ in
    ?*:/root/* | ?*:/home/*)
      echo "the host's $python lies in a home ($base), into which the units of systemd cannot look: name one that is installed for all by the variable python" >&2
      exit 2
      ;;
  esac
  if "$python" -m pip --python "$python" --version >/dev/null 2>&1; then # its own pip does: an environment with one more takes twice as long to make
    "$python" -m venv --without-pip "$target"
    pip="$python -m pip --python $target/bin/python"
  else
    "$python" -m venv "$target"
    pip="$target/bin/python -m pip"
  fi
  if [ -n "$wheels" ]; then # an index may have something else by one of their names, and this is root
    if [ ! -f "$wheels.sums" ]; then
      echo "there is no $wheels.sums with the sums of the wheels: write it with sha256sum where they come from" >&2
      exit 2
    fi
    for wheel in "$wheels"/*.whl; do
      listed=$(awk -v name="${wheel##*/}" '$2 == name { print $1 }' "$wheels.sums")
      found=$(sha256sum "$wheel" | cut -d' ' -f1)
      if [ -z "$listed" ] || [ "$listed" != "$found" ]; then
        echo "the wheel ${wheel##*/} is not what was carried here: its sum is $found, and ${listed:-none} was sent with it; apply again, and look who writes to $wheels" >&2
        exit 2
      fi
    done
    set -- --no-index --only-binary :all: --find-links "$wheels" "$@"
  fi
  # shellcheck disable=SC2086  # several words each
  $pip install --quiet --disable-pip-version-check --no-cache-dir $options "$@"
  touch "$target/complete"
fi
# The release in use, and this one; what is older goes.
current=$(basename "$(readlink "$prefix/current" 2>/dev/null || echo none)")
for old in "$prefix"/releases/*; do
  case $(basename "$old") in
    "$release" | "$current") ;;
    *) rm -rf "$old" ;;
  esac
done
