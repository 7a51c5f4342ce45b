# The system that the commands of a page see: a network, processes, /run, /opt and /etc of their own. It ends with this
# shell, which is its first process.
set -euo pipefail
export USER=root
cd "$FOLDER"
mkdir etc system-etc work steps system
mount -t tmpfs none /run
mount -t tmpfs none /opt
mount -t tmpfs none /var/lib
mkdir /var/lib/hairpin
mount --bind /etc system-etc

ip link set lo up
ip link add eth0 type veth peer name cable
ip address add 192.0.2.10/24 dev eth0
ip link set eth0 up
ip link set cable up
ip route add default dev eth0

# /etc is that of the system, except for these files.
ln -s "$FOLDER"/system-etc/* etc/
rm -f etc/hosts etc/group etc/resolv.conf etc/hairpin
mkdir etc/hairpin
cat > etc/hosts <<'END'
127.0.0.1 localhost
192.0.2.10 turn.example.org phone.example.org stun.example.org db.example.org
END
echo '# There is no DNS.' > etc/resolv.conf
{ grep -v '^hairpin:' /etc/group; echo 'hairpin:x:64990:'; } > etc/group
mount --bind etc /etc
cd work

# Waits until a command succeeds.
until_true() {
    for _ in $(seq 600); do
        if "$@" > /dev/null 2>&1; then return; fi
        sleep 0.05
    done
    echo "it does not become true: $*"
    tail -n 20 ./*.out || true
    return 1
}

# Starts a server as the unit of the package does, which has its state directory.
serve() {
    hairpin serve --config /etc/hairpin/hairpin.toml "$@" > serve.out 2>&1 < /dev/null &
    server=$!
    until_true grep -q 'Stop with Ctrl-C' serve.out || { cat serve.out; exit 1; }
}

# The server that runs, whatever has started it.
end_server() {
    local pid
    pid=$(hairpin status --json | jq .pid)
    kill "$pid"
    until_true test ! -e "/proc/$pid"
}

# Makes an issuer that this system trusts, and a certificate of it for the names of the pages.
certify() {
    local new=(openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 2)
    "${new[@]}" -subj /CN=issuer -keyout ca.key -out ca.crt 2> /dev/null
    "${new[@]}" -subj /CN=turn.example.org -CA ca.crt -CAkey ca.key -keyout tls.key -out leaf.crt \
        -addext basicConstraints=critical,CA:FALSE \
        -addext subjectAltName=DNS:turn.example.org,DNS:phone.example.org,DNS:db.example.org 2> /dev/null
    cat leaf.crt ca.crt > /etc/hairpin/tls.crt
    cp tls.key /etc/hairpin/tls.key
    chmod 0600 /etc/hairpin/tls.key
    export SSL_CERT_FILE=$PWD/ca.crt
}

# Runs a command of the page in this shell, which keeps its variables.
step() {
    out=$FOLDER/steps/$1.out
    set +e
    # shellcheck disable=SC1090
    . "$FOLDER/steps/$1.sh" > "$out" 2>&1 < "$FOLDER/steps/$1.in"
    echo $? > "$FOLDER/steps/$1.status"
    set -e
}

# Runs one that does not end, until the second argument is true of it.
background() {
    out=$FOLDER/steps/$1.out
    set -m
    # shellcheck disable=SC1090
    . "$FOLDER/steps/$1.sh" > "$out" 2>&1 < /dev/null &
    last=$!
    set +m
    for _ in $(seq 600); do
        if eval "$2" > /dev/null 2>&1; then echo 0 > "$FOLDER/steps/$1.status"; return; fi
        kill -0 "$last" 2> /dev/null || break
        sleep 0.05
    done
    echo "it has ended, or is not ready" >> "$out"
    echo 1 > "$FOLDER/steps/$1.status"
}
# Looks for words in the output of the command.
said() { grep -qF -- "$1" "$out"; }

# Ends the last command in the background.
end_last() {
    kill -KILL -- "-$last"
    wait "$last" || true
}

# The section [auth] with a secret and users, each as NAME:PASSWORD. Clients reach peers on this machine.
auth_section() {
    printf '[auth]\nrealm = "example.org"\nsecrets = ["%s"]\nusers = [' "$1"
    shift
    for user in "$@"; do printf '{ name = "%s", password = "%s" }, ' "${user%:*}" "${user#*:}"; done
    printf ']\n[peers]\nallow_local = true\n'
}

certificate_section() {
    printf '[tls]\ncertificates = [{ certificate = "/etc/hairpin/tls.crt", key = "/etc/hairpin/tls.key" }]\n'
}

# A registrar at an address, with users whose password is pw.
sip_section() {
    printf '[sip]\nlisten = ["%s:5060"]\n[[sip.domain]]\nname = "example.org"\nusers = [' "$1"
    shift
    for user in "$@"; do printf '{ name = "%s", password = "pw" }, ' "$user"; done
    printf ']\n[auth]\nrealm = "example.org"\n'
}

trunk_section() {
    printf '[[sip.trunk]]\nname = "carrier"\nto = ["sip:192.0.2.7:5060"]\n'
}

calls_are_answered() { hairpin sip calls --json | grep -q answered; }

# The unit of the package, below a folder that systemctl takes for a system.
install_unit() {
    mkdir -p "$FOLDER/system/usr/lib/systemd/system"
    cp "$ROOT/deploy/hairpin.service" "$FOLDER/system/usr/lib/systemd/system/"
}

# A database with these options, as the user postgres. It has a certificate if there is one.
start_postgres() {
    local programs
    programs=$(printf '%s\n' /usr/lib/postgresql/*/bin | sort -V | tail -n 1)
    mkdir "$FOLDER/data" /run/postgresql
    chown postgres "$FOLDER/data" /run/postgresql
    sudo -u postgres "$programs/initdb" --no-sync --auth-local=trust --auth-host=scram-sha-256 \
        -D "$FOLDER/data" > initdb.out 2>&1 || { cat initdb.out; exit 1; }
    echo 'host all all 192.0.2.0/24 scram-sha-256' >> "$FOLDER/data/pg_hba.conf"
    if [ -e tls.key ]; then
        install -m 0600 -o postgres tls.key "$FOLDER/data/tls.key"
        install -o postgres /etc/hairpin/tls.crt "$FOLDER/data/tls.crt"
    fi
    sudo -u postgres "$programs/postgres" -D "$FOLDER/data" -c fsync=off -c 'listen_addresses=*' \
        -c unix_socket_directories=/run/postgresql "$@" > postgres.out 2>&1 < /dev/null &
    until_true psql -U postgres -c 'SELECT 1' postgres
}
