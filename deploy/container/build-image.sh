#!/bin/sh
# Builds the container image of a program without a registry: FROM scratch, with the libraries that the program is linked with.
# Usage: build-image.sh PROGRAM OUT.tar [VERSION]. OUT.tar is an OCI archive: podman load --input OUT.tar
# Two runs with the same program and libraries write the same bytes (SOURCE_DATE_EPOCH, default 0, is the time of everything).
set -eu

program=$1
out=$2
version=${3:-latest}
deploy=$(cd "$(dirname "$0")/.." && pwd)
epoch=${SOURCE_DATE_EPOCH:-0}
case $(uname -m) in
    x86_64) architecture=amd64 ;;
    aarch64) architecture=arm64 ;;
    *) echo "build-image.sh: $(uname -m) is not supported: use a machine with x86_64 or aarch64" >&2; exit 1 ;;
esac
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
root=$work/root
image=$work/image
mkdir -p "$root/usr/bin" "$root/etc/hairpin" "$root/etc/ssl/certs" "$root/tmp" "$root/run/hairpin" "$root/var/lib/hairpin" "$image/blobs/sha256"

install -m 755 "$program" "$root/usr/bin/hairpin"
# The libraries, where the program's loader looks for them.
ldd "$program" | sed -n 's/.*=> \(\/[^ ]*\) .*/\1/p; s/^[[:space:]]*\(\/[^ ]*\) .*/\1/p' | while read -r library; do
    install -D -m 755 "$library" "$root$library"
done
install -m 644 "$deploy/hairpin.toml" "$root/etc/hairpin/hairpin.toml"
printf 'root:x:0:0:root:/:/sbin/nologin\nhairpin:x:65532:65532:hairpin:/var/lib/hairpin:/sbin/nologin\n' > "$root/etc/passwd"
printf 'root:x:0:\nhairpin:x:65532:\n' > "$root/etc/group"
printf 'hosts: files dns\n' > "$root/etc/nsswitch.conf"
if [ -e /etc/ssl/certs/ca-certificates.crt ]; then
    install -m 644 /etc/ssl/certs/ca-certificates.crt "$root/etc/ssl/certs/ca-certificates.crt"
fi
# Permitted, not effective: without them in the container's bounding set, the program starts all the same.
setcap cap_bpf,cap_net_admin,cap_perfmon,cap_net_bind_service+p "$root/usr/bin/hairpin"
chmod 1777 "$root/tmp"
chown -R 65532:65532 "$root/run/hairpin" "$root/var/lib/hairpin"

# One layer.
tar --create --format=posix --pax-option=exthdr.name=%d/PaxHeaders/%f,delete=atime,delete=ctime --xattrs --xattrs-include='security.capability' \
    --sort=name --numeric-owner --mtime="@$epoch" --directory "$root" --file "$work/layer.tar" .
# blob FILE: stores a file under its digest, and prints that.
blob() {
    digest=$(sha256sum "$1" | cut -d ' ' -f 1)
    mv "$1" "$image/blobs/sha256/$digest"
    echo "$digest"
}
layer_size=$(stat -c %s "$work/layer.tar")
layer=$(blob "$work/layer.tar")
cat > "$work/config" << END
{"architecture":"$architecture","os":"linux","created":"$(date -u -d "@$epoch" +%Y-%m-%dT%H:%M:%SZ)","config":{"User":"65532:65532","ExposedPorts":{"3478/udp":{},"3478/tcp":{},"9641/tcp":{}},"Env":["PATH=/usr/bin","RUNTIME_DIRECTORY=/run/hairpin"],"Entrypoint":["/usr/bin/hairpin"],"Cmd":["serve","--config","/etc/hairpin/hairpin.toml"],"Healthcheck":{"Test":["CMD","/usr/bin/hairpin","status"],"Interval":10000000000,"Timeout":3000000000},"Volumes":{"/run/hairpin":{},"/var/lib/hairpin":{}}},"rootfs":{"type":"layers","diff_ids":["sha256:$layer"]}}
END
config_size=$(stat -c %s "$work/config")
config=$(blob "$work/config")
cat > "$work/manifest" << END
{"schemaVersion":2,"mediaType":"application/vnd.oci.image.manifest.v1+json","config":{"mediaType":"application/vnd.oci.image.config.v1+json","digest":"sha256:$config","size":$config_size},"layers":[{"mediaType":"application/vnd.oci.image.layer.v1.tar","digest":"sha256:$layer","size":$layer_size}]}
END
manifest_size=$(stat -c %s "$work/manifest")
manifest=$(blob "$work/manifest")
printf '{"imageLayoutVersion":"1.0.0"}' > "$image/oci-layout"
cat > "$image/index.json" << END
{"schemaVersion":2,"manifests":[{"mediaType":"application/vnd.oci.image.manifest.v1+json","digest":"sha256:$manifest","size":$manifest_size,"annotations":{"org.opencontainers.image.ref.name":"localhost/hairpin:$version"}}]}
END
tar --create --sort=name --numeric-owner --owner=0 --group=0 --mtime="@$epoch" --directory "$image" --file "$out" .
echo "$out"
