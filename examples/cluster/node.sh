#!/bin/bash
# Ray on a machine of your own, until Ctrl-C. All machines need the same RAY_AUTH_TOKEN: a secret of your making, such as
# `openssl rand -hex 32` prints. Start it in the environment that tinyzero is installed in:
#
#   export RAY_AUTH_TOKEN=…
#   bash node.sh                    # on the first machine; it tells its address
#   bash node.sh 10.0.0.1:6379      # on each other one
#   RAY_AUTH_MODE=token tinyzero train --task countdown --address 10.0.0.1:6379 --gpus 16     # on any of them
#
# Words behind the address go to `ray start`; on the first machine the address is `head`: bash node.sh head --num-gpus 4
set -euo pipefail

: "${RAY_AUTH_TOKEN:-${RAY_AUTH_TOKEN_PATH:?whoever reaches a Ray without one can run code on it; export RAY_AUTH_TOKEN=SECRET}}"
export RAY_AUTH_MODE=token RAY_USAGE_STATS_ENABLED=0
ulimit -n "$(ulimit -Hn)" || true

address=${1:-head}
shift || true
if [ "$address" = head ]; then
    ip=${HEAD_ADDRESS:-$(python -c 'import ray; print(ray.util.get_node_ip_address())')}
    port=${PORT:-6379}
    echo "the address of this Ray: $ip:$port"
    exec ray start --head --node-ip-address="$ip" --port="$port" --include-dashboard=false --block "$@"
fi
exec ray start --address="$address" --block "$@"
