#!/usr/bin/env bash
# Installs and builds what run.py needs, into benches/peers/build. Safe to run again.
#
# Every peer is optional. What cannot be had leaves its reason in build/absent/PEER, and the tables repeat it.
#
#   TORCH_INDEX_URL=URL   where pip finds torch; PyTorch publishes an index of CPU-only wheels, a tenth of the size of
#                         the default Linux wheel with its CUDA libraries
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
build=$here/build
absent=$build/absent
log=$build/setup.log
mkdir -p "$build"
rm -rf "$absent"
mkdir -p "$absent"
: >"$log"

say() { printf '%s\n' "$*" >&2; }

# Runs a command with its output in the log. Callers test it with `if`, so a failure is theirs to report.
quietly() {
  printf '+ %s\n' "$*" >>"$log"
  "$@" >>"$log" 2>&1
}

lacks() { # PEER REASON
  printf '%s\n' "$2" >"$absent/$1"
  say "absent: $1: $2"
}

has() { command -v "$1" >/dev/null; }

apt_updated=
install_packages() {
  has apt-get || return 1
  local as_root=()
  if [[ $EUID != 0 ]]; then
    has sudo || return 1
    as_root=(sudo -n)
  fi
  if [[ -z $apt_updated ]]; then
    # An old list may still have the packages, so a failed update is not the end.
    quietly "${as_root[@]}" apt-get update || true
    apt_updated=1
  fi
  quietly "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive \
    apt-get install -y --no-install-recommends "$@"
}

need() { # COMMAND PACKAGE...
  local command=$1
  shift
  has "$command" || install_packages "$@" || true
  has "$command"
}

build_limits() {
  if ! need cc build-essential; then
    lacks limits "no C compiler, and it could not be installed"
  elif ! quietly cc -O3 -march=native -pthread -o "$build/limits" "$here/limits.c"; then
    lacks limits "limits.c did not compile, see build/setup.log"
  else
    say "ready:  limits"
  fi
}

build_mpi() { # PEER PACKAGES...
  local peer=$1
  shift
  rm -f "$build/mpi_$peer"
  if ! need "mpicc.$peer" "$@"; then
    lacks "$peer" "mpicc.$peer is not here, and apt could not install $*"
  elif ! quietly "mpicc.$peer" -O3 -march=native -o "$build/mpi_$peer" "$here/mpi_peer.c"; then
    lacks "$peer" "mpi_peer.c did not compile with mpicc.$peer, see build/setup.log"
  else
    say "ready:  $peer"
  fi
}

build_torch() {
  local venv=$build/venv
  local index=()
  [[ -z ${TORCH_INDEX_URL:-} ]] || index=(--index-url "$TORCH_INDEX_URL")
  if [[ -x $venv/bin/python ]] && quietly "$venv/bin/python" -c 'import torch.distributed as d; assert d.is_gloo_available()'; then
    say "ready:  torch"
    return
  fi
  if ! need python3 python3; then
    lacks torch "no python3"
    return
  fi
  quietly python3 -m venv "$venv" || { install_packages python3-venv && quietly python3 -m venv "$venv"; } || true
  if [[ ! -x $venv/bin/pip ]]; then
    lacks torch "python3 -m venv failed, see build/setup.log"
  elif ! quietly "$venv/bin/pip" install "${index[@]}" torch numpy; then
    lacks torch "pip could not install torch, see build/setup.log"
  elif ! quietly "$venv/bin/python" -c 'import torch.distributed as d; assert d.is_gloo_available()'; then
    lacks torch "torch was installed but cannot be imported or has no Gloo, see build/setup.log"
  else
    say "ready:  torch"
  fi
}

build_rust() { # PEER
  local peer=$1
  if ! has cargo; then
    lacks "$peer" "no cargo"
  elif ! (cd "$here/$peer" && quietly cargo build --release --locked --target-dir "$build/$peer"); then
    lacks "$peer" "benches/peers/$peer did not build, see build/setup.log"
  else
    say "ready:  $peer"
  fi
}

if ! need ip iproute2; then
  lacks netns "no ip command (package iproute2), so no network namespace: no like-with-like TCP tables"
fi
build_limits
build_mpi openmpi openmpi-bin libopenmpi-dev
build_mpi mpich mpich libmpich-dev
build_torch
build_rust burn
build_rust nexar
say "what is absent is in $absent; the log is $log"
