//! Values of Kubernetes' libraries: quantities, addresses, versions, checks of permissions.

use std::{fmt, net::IpAddr, sync::Arc};

use windlass_apimachinery::go_quoted;

pub(crate) use crate::library::{cidr::Cidr, url::Url};
use crate::{
    library::{named_format::Format, quantity::Amount, semver::Version},
    types::Type,
};

/// A value of a library's own type.
#[derive(Debug, Clone)]
pub enum Opaque<'a> {
    /// A quantity such as `1Gi`.
    Quantity(Arc<Amount>),
    /// A URL.
    Url(Arc<Url>),
    /// An address.
    Ip(IpAddr),
    /// An address and the length of its prefix.
    Cidr(Cidr),
    /// A semantic version.
    Semver(Arc<Version>),
    /// A format of names.
    Format(&'static Format),
    /// Who asks for permissions.
    Authorizer(Arc<Check<'a>>),
    /// A path to be checked.
    PathCheck(Arc<Check<'a>>),
    /// A group to be checked.
    GroupCheck(Arc<Check<'a>>),
    /// A resource to be checked.
    ResourceCheck(Arc<Check<'a>>),
    /// The answer.
    Decision(Arc<Decision>),
}

/// What answers whether a request is allowed; upstream's `authorizer.Authorizer` with the user that it is about.
pub trait Authorizer: fmt::Debug + Send + Sync {
    /// Whether the request is allowed to the user, or to the service account that the request names.
    fn authorize(&self, request: &ResourceAttributes) -> Decision;
}

/// A request that an expression asks about; upstream's `AttributesRecord`. Empty fields were not given.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ResourceAttributes {
    /// Namespace and name of the service account that is asked about in place of the user.
    pub service_account: Option<(String, String)>,
    /// The verb.
    pub verb: String,
    /// The path of a request that is for no resource.
    pub path: String,
    /// The group of the resource.
    pub group: String,
    /// The resource.
    pub resource: String,
    /// Its subresource.
    pub subresource: String,
    /// The namespace.
    pub namespace: String,
    /// The name.
    pub name: String,
    /// The selector of fields, as the expression writes it.
    pub field_selector: String,
    /// The selector of labels, as the expression writes it.
    pub label_selector: String,
}

/// Whether a request is allowed.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Decision {
    /// It is.
    pub allowed: bool,
    /// Why.
    pub reason: String,
    /// What kept the authorizer from answering.
    pub error: Option<String>,
}

/// A request that an expression puts together.
#[derive(Debug, Clone)]
pub struct Check<'a> {
    pub(crate) authorizer: &'a dyn Authorizer,
    pub(crate) request: ResourceAttributes,
}

impl<'a> Opaque<'a> {
    /// The variable `authorizer`.
    #[must_use]
    pub fn authorizer(authorizer: &'a dyn Authorizer) -> Self {
        Self::Authorizer(Arc::new(Check { authorizer, request: ResourceAttributes::default() }))
    }

    /// The variable `authorizer.requestResource`: the resource of the request that is being admitted.
    #[must_use]
    pub fn request_resource(authorizer: &'a dyn Authorizer, request: ResourceAttributes) -> Self {
        Self::ResourceCheck(Arc::new(Check { authorizer, request }))
    }

    /// The name of the type.
    pub(crate) const fn type_name(&self) -> &'static str {
        match self {
            Self::Quantity(_) => "kubernetes.Quantity",
            Self::Url(_) => "kubernetes.URL",
            Self::Ip(_) => "net.IP",
            Self::Cidr(_) => "net.CIDR",
            Self::Semver(_) => "kubernetes.Semver",
            Self::Format(_) => "kubernetes.NamedFormat",
            Self::Authorizer(_) => "kubernetes.authorization.Authorizer",
            Self::PathCheck(_) => "kubernetes.authorization.PathCheck",
            Self::GroupCheck(_) => "kubernetes.authorization.GroupCheck",
            Self::ResourceCheck(_) => "kubernetes.authorization.ResourceCheck",
            Self::Decision(_) => "kubernetes.authorization.Decision",
        }
    }

    pub(super) fn type_of(&self) -> Type {
        match self {
            Self::Ip(_) | Self::Cidr(_) => Type::Opaque(self.type_name().into(), [].into()),
            _ => Type::object(self.type_name()),
        }
    }

    /// Addresses have a length in bytes, prefixes that of what is not zero.
    pub(super) fn len(&self) -> Option<u64> {
        match self {
            Self::Ip(IpAddr::V4(_)) => Some(4),
            Self::Ip(IpAddr::V6(_)) => Some(16),
            Self::Cidr(cidr) => Some(u64::from(cidr.bits().div_ceil(8))),
            _ => None,
        }
    }

    /// Whether both are equal; nothing if they cannot be compared.
    pub(super) fn equal(&self, other: &Self) -> Option<bool> {
        Some(match (self, other) {
            (Self::Quantity(one), Self::Quantity(other)) => one == other,
            (Self::Url(one), Self::Url(other)) => one.to_string() == other.to_string(),
            (Self::Ip(one), Self::Ip(other)) => one == other,
            (Self::Cidr(one), Self::Cidr(other)) => one == other,
            (Self::Semver(one), Self::Semver(other)) => one.compare(other).is_eq(),
            (Self::Format(one), Self::Format(other)) => one.name == other.name,
            _ => return None,
        })
    }
}

impl fmt::Display for Opaque<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Quantity(quantity) => write!(f, "quantity({})", go_quoted(&quantity.to_string())),
            Self::Url(url) => write!(f, "url({})", go_quoted(&url.to_string())),
            Self::Ip(ip) => write!(f, "ip({})", go_quoted(&ip.to_string())),
            Self::Cidr(cidr) => write!(f, "cidr({})", go_quoted(&cidr.to_string())),
            Self::Semver(version) => write!(f, "semver({})", go_quoted(&version.to_string())),
            Self::Format(format) => write!(f, "format({})", go_quoted(format.name)),
            other => f.write_str(other.type_name()),
        }
    }
}
