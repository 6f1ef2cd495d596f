#!/usr/bin/env bash
# A worker in shell: for each job of a queue it runs a command, with the payload on its standard input.
#
#     LEASEMILL_URL=http://127.0.0.1:7411 ./worker.sh QUEUE COMMAND [ARGUMENT...]
#
# What the command prints must be JSON, and is the job's result. If it exits with another code than 0, the job is retried,
# and what it wrote to standard error is recorded. It finds LEASEMILL_JOB_ID, LEASEMILL_ATTEMPT and LEASEMILL_FENCE in its
# environment: pass the fence on to systems that can refuse an older one.
#
# Needs bash, curl (7.82 or newer) and jq. With DRAIN=1 it ends when nothing is left to do. After SIGTERM it ends when its
# job, or the claim that waits (WAIT_S, 20 seconds), is over.
set -uo pipefail

url=${LEASEMILL_URL:?set LEASEMILL_URL to the address of the server}
queue=${1:?usage: worker.sh QUEUE COMMAND [ARGUMENT...]}
shift
worker="$(hostname)-$$"
wait_s=${WAIT_S:-20}
[ -n "${DRAIN:-}" ] && wait_s=1
folder=$(mktemp -d)
stopping=
handler=
trap 'rm -rf "$folder"' EXIT
trap 'stopping=1' TERM INT

log() { printf '%s %s\n' "$(date -u +%FT%TZ)" "$*" >&2; }

# call VERB JSON FILE: the answer goes to the file, the status to standard output. A server that is away is waited for:
# every call here may be repeated, for it carries the token or the request id it is about.
call() {
    local status pause=0.2 authorization=()
    [ -n "${LEASEMILL_TOKEN:-}" ] && authorization=(--header "Authorization: Bearer $LEASEMILL_TOKEN")
    while :; do
        status=$(curl --silent --show-error --max-time 90 "${authorization[@]}" --json @- --output "$3" \
            --write-out '%{http_code}' "$url/v1/$1" <<<"$2" 2>"$folder/curl") && [ "$status" -lt 500 ] && break
        log "no answer to $1, trying again: $(cat "$folder/curl")"
        sleep "$pause"
        pause=1
    done
    printf '%s' "$status"
}

# Extends the lease until it is killed; ends by itself, and the handler with it, when the lease is lost.
heartbeat() {
    local ref=$1 every=$2 running=$3 status
    while sleep "$every"; do
        status=$(call extend "{\"leases\":[$ref]}" "$folder/beat")
        if [ "$status" = 409 ]; then
            log "lease lost: $(jq -r '.answer[0].reason' "$folder/beat")"
            kill "$running" 2>/dev/null
            return
        fi
    done
}

run() {
    local lease=$1 ref every beat code status error
    shift
    ref=$(jq -c '{job_id: .job.id, token}' <<<"$lease")
    every=$(jq -r '.terms.lease_ttl_us / 3000000' <<<"$lease")
    call start "{\"reports\":[$ref]}" "$folder/started" >/dev/null
    jq -c '.job.payload' <<<"$lease" >"$folder/payload"
    LEASEMILL_JOB_ID=$(jq -r .job.id <<<"$lease") LEASEMILL_ATTEMPT=$(jq -r .attempt <<<"$lease") \
        LEASEMILL_FENCE=$(jq -r .fence <<<"$lease") \
        "$@" <"$folder/payload" >"$folder/result" 2>"$folder/error" &
    handler=$!
    heartbeat "$ref" "$every" "$handler" &
    beat=$!
    while :; do # a signal interrupts the wait, not the handler
        wait "$handler"
        code=$?
        kill -0 "$handler" 2>/dev/null || break
    done
    kill "$beat" 2>/dev/null
    wait "$beat" 2>/dev/null
    if [ "$code" -ne 0 ]; then
        error=$(tail -c 2000 "$folder/error" | jq -Rs --arg code "$code" '. + "exit " + $code')
        status=$(call nack "{\"reports\":[$(jq -c --argjson error "$error" '. + {error: $error}' <<<"$ref")]}" "$folder/answer")
    elif [ -s "$folder/result" ] && ! jq . "$folder/result" >/dev/null 2>&1; then
        status=$(call nack "{\"reports\":[$(jq -c '. + {error: "the result is not JSON", is_permanent: true}' <<<"$ref")]}" \
            "$folder/answer")
    else
        [ -s "$folder/result" ] || echo null >"$folder/result"
        status=$(call ack "{\"reports\":[$(jq -c --slurpfile result "$folder/result" '. + {result: $result[0]}' <<<"$ref")]}" \
            "$folder/answer")
    fi
    case $status in
    200) log "job $(jq -r .job_id <<<"$ref"): $(jq -r '.[0].outcome' "$folder/answer")" ;;
    409) log "job $(jq -r .job_id <<<"$ref") is another worker's now: $(jq -r '.answer[0].reason' "$folder/answer")" ;;
    *) log "job $(jq -r .job_id <<<"$ref"): status $status $(cat "$folder/answer")" ;;
    esac
}

while [ -z "$stopping" ]; do
    request=$(od -An -N12 -tx1 /dev/urandom | tr -d ' \n')
    claim=$(jq -nc --arg worker "$worker" --arg queue "$queue" --arg id "$request" --argjson wait "$wait_s" \
        '{worker: $worker, queues: [$queue], limit: 1, request_id: $id, wait_s: $wait}')
    status=$(call claim "$claim" "$folder/claimed")
    if [ "$status" != 200 ]; then
        log "cannot claim: $(cat "$folder/claimed")"
        exit 1
    fi
    lease=$(jq -c '.[0] // empty' "$folder/claimed")
    if [ -n "$lease" ]; then
        run "$lease" "$@"
    elif [ -n "${DRAIN:-}" ]; then
        break
    fi
done
log "stopped"
