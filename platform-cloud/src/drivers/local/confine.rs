//! Drops privileges irrevocably before a process becomes the program of a node: capabilities, and privileges that
//! programs gain on exec.

use std::{io, os::unix::process::CommandExt, process::Command};

use rustix::{
    io::Errno,
    thread::{
        CapabilitySet, CapabilitySets, capabilities, clear_ambient_capability_set,
        remove_capability_from_bounding_set, set_capabilities, set_no_new_privs,
    },
};

use super::spec::User;

/// Makes a command run as a user without any privileges. Changes the current process, which is about to exec the
/// command.
pub(super) fn confine(command: &mut Command, user: User) -> io::Result<()> {
    set_no_new_privs(true)?;
    clear_ambient_capability_set()?;
    let held = capabilities(None)?;
    set_capabilities(
        None,
        CapabilitySets {
            inheritable: CapabilitySet::empty(),
            ..held
        },
    )?;
    for bit in 0..u64::BITS {
        let capability = CapabilitySet::from_bits_retain(1 << bit);
        match remove_capability_from_bounding_set(capability) {
            Ok(()) => {}
            // The kernel has no further capabilities; or this root user is confined to a user namespace, where without
            // new privileges no program gains any.
            Err(Errno::INVAL | Errno::PERM) => break,
            Err(error) => return Err(error.into()),
        }
    }
    // The kernel clears the effective and permitted sets when the uid changes from root; supplementary groups are
    // dropped, too.
    command.uid(user.uid).gid(user.gid);
    Ok(())
}
