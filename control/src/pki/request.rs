//! A request for a certificate: what it asks for. Pure.

use x509_parser::{
    certification_request::X509CertificationRequest,
    cri_attributes::ParsedCriAttribute,
    extensions::{GeneralName, ParsedExtension},
    oid_registry::OID_X509_EXT_SUBJECT_ALT_NAME,
    pem::Pem,
    prelude::FromDer as _,
};

/// What a request says of its subject.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct CertificateRequest {
    /// The last common name.
    pub(crate) common_name: String,
    /// The organizations, which are groups of a user.
    pub(crate) organizations: Vec<String>,
    /// How many alternative names there are of each kind.
    pub(crate) dns_names: usize,
    pub(crate) ip_addresses: usize,
    pub(crate) email_addresses: usize,
    pub(crate) uris: usize,
    /// The parts that a certificate takes over, in DER.
    pub(crate) subject: Vec<u8>,
    pub(crate) public_key: Vec<u8>,
    pub(crate) alternative_names: Option<Vec<u8>>,
}

impl CertificateRequest {
    /// Reads a request in PEM, and checks that its sender has the key.
    ///
    /// # Errors
    /// Why it cannot be used.
    pub(crate) fn from_pem(pem: &[u8]) -> Result<Self, String> {
        let block = Pem::iter_from_buffer(pem).next().and_then(Result::ok);
        let block = block.filter(|block| block.label == "CERTIFICATE REQUEST");
        let block = block.ok_or("PEM block type must be CERTIFICATE REQUEST")?;
        let (_, request) = X509CertificationRequest::from_der(&block.contents).map_err(|e| e.to_string())?;
        request.verify_signature().map_err(|e| format!("unable to verify certificate request signature: {e}"))?;
        let info = &request.certification_request_info;
        let texts = |found: &mut dyn Iterator<Item = Result<&str, x509_parser::error::X509Error>>| {
            found.map(|text| text.map(str::to_owned).map_err(|e| e.to_string())).collect::<Result<Vec<_>, _>>()
        };
        let mut read = Self {
            common_name: texts(&mut info.subject.iter_common_name().map(|name| name.as_str()))?
                .pop()
                .unwrap_or_default(),
            organizations: texts(&mut info.subject.iter_organization().map(|name| name.as_str()))?,
            subject: info.subject.as_raw().to_vec(),
            public_key: info.subject_pki.raw.to_vec(),
            ..Self::default()
        };
        let extensions = info.iter_attributes().filter_map(|attribute| match attribute.parsed_attribute() {
            ParsedCriAttribute::ExtensionRequest(asked) => Some(&asked.extensions),
            _ => None,
        });
        for extension in extensions.flatten().filter(|e| e.oid == OID_X509_EXT_SUBJECT_ALT_NAME) {
            let ParsedExtension::SubjectAlternativeName(names) = extension.parsed_extension() else {
                return Err("the alternative names cannot be read".to_owned());
            };
            for name in &names.general_names {
                match name {
                    GeneralName::DNSName(_) => read.dns_names += 1,
                    GeneralName::IPAddress(_) => read.ip_addresses += 1,
                    GeneralName::RFC822Name(_) => read.email_addresses += 1,
                    GeneralName::URI(_) => read.uris += 1,
                    _ => {
                        return Err(
                            "alternative names may be DNS names, IP addresses, email addresses and URIs".to_owned()
                        );
                    }
                }
            }
            read.alternative_names = Some(extension.value.to_vec());
        }
        Ok(read)
    }
}
