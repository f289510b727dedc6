//! What a process of a node gives up before it becomes its program, so that nothing gives it back: privileges that
//! programs bring with them, and capabilities.

use std::{io, os::unix::process::CommandExt, process::Command};

use rustix::{
    io::Errno,
    thread::{
        CapabilitySet, CapabilitySets, capabilities, clear_ambient_capability_set,
        remove_capability_from_bounding_set, set_capabilities, set_no_new_privs,
    },
};

use super::spec::User;

/// Has a command run as a user, and as nothing more. This process, which is about to become it, gives up the rest first.
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
            // The kernel knows no more of them; or this root is none of the whole machine, and without new privileges
            // no program brings any.
            Err(Errno::INVAL | Errno::PERM) => break,
            Err(error) => return Err(error.into()),
        }
    }
    // The kernel takes what is held and permitted when the user is no longer root; supplementary groups go as well.
    command.uid(user.uid).gid(user.gid);
    Ok(())
}
