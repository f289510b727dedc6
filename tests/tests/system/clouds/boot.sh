#!/bin/sh
# The first process of a machine, in namespaces of its own: becomes the systemd of a Debian that runs user data once, as
# cloud-init does.
#   boot.sh TREE DIRECTORY NAME USER-DATA
set -eu
tree=$1 directory=$2 name=$3 data=$4

mount -t tmpfs -o size=1g,mode=755 machine "$directory"
mkdir "$directory/changed" "$directory/work" "$directory/root"
mount -t overlay -o "lowerdir=$tree,upperdir=$directory/changed,workdir=$directory/work" machine "$directory/root"

# A group of its own: systemd takes the one that it is in for its own. There may be several hierarchies in a folder, which is
# another one for the machine, because systemd changes it; what else is in that folder is no hierarchy.
groups=/sys/fs/cgroup
[ -e $groups/cgroup.controllers ] || groups=$(for group in $groups/*; do ! mountpoint -q "$group" || echo "$group"; done)
for group in $groups; do
    mkdir -p "$group/$name"
    if [ -e "$group/cpuset.cpus" ]; then
        for what in cpus mems; do cat "$group/cpuset.$what" >"$group/$name/cpuset.$what"; done
    fi
    echo 0 >"$group/$name/cgroup.procs"
done

cd "$directory/root"
mount -t proc proc proc
echo "$name" >proc/sys/kernel/hostname
echo "$name" >etc/hostname
# Most of what is there is not the machine's alone.
mount --bind proc/sys proc/sys
mount -o remount,bind,ro proc/sys
mount -t sysfs -o ro sysfs sys
[ "$groups" = /sys/fs/cgroup ] || mount -t tmpfs -o mode=755 groups sys/fs/cgroup
for group in $groups; do
    [ -e ".$group" ] || mkdir ".$group"
    mount --bind "$group" ".$group"
done
[ "$groups" = /sys/fs/cgroup ] || mount -o remount,bind,ro sys/fs/cgroup
mount -t tmpfs -o mode=755 dev dev
for device in null zero full random urandom tty; do
    : >"dev/$device"
    mount --bind "/dev/$device" "dev/$device"
done
mkdir dev/pts
mount -t devpts -o newinstance,ptmxmode=0666,mode=620,gid=5 devpts dev/pts
ln -s pts/ptmx dev/ptmx
ln -s /proc/self/fd dev/fd

install -D -m 700 "$data" var/lib/cloud/instance/scripts/part-001
cat >etc/systemd/system/cloud-final.service <<'END'
[Unit]
After=network-online.target multi-user.target

[Service]
Type=oneshot
ExecStart=/var/lib/cloud/instance/scripts/part-001
RemainAfterExit=yes
TimeoutSec=0
KillMode=process
END
mkdir -p etc/systemd/system/multi-user.target.wants
ln -s ../cloud-final.service etc/systemd/system/multi-user.target.wants/

# What concerns the kernel, it must not do.
pivot_root . mnt
exec env -i container=machine PATH=/usr/sbin:/usr/bin:/sbin:/bin chroot . \
    sh -c 'umount -l /mnt && exec setpriv --bounding-set -sys_rawio,-sys_module,-sys_time,-sys_boot,-syslog /sbin/init'
