//! Authorizers that know kinds or users of the system.

mod default_roles;
pub(crate) mod node;

pub(crate) use default_roles::DefaultRoles;
pub(crate) use node::NodeAuthorizer;
