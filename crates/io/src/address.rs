//! Socket addresses as the kernel spells them.
