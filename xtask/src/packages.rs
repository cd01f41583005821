//! What the lab is made of and does not write itself: programs of this machine, a kernel and a root image from the
//! distribution's packages, and programs built from Go modules.

pub(crate) mod cargo_deny;
pub(crate) mod go;
pub(crate) mod initramfs;
pub(crate) mod machine;
pub(crate) mod root;
pub(crate) mod user_mode;
