//! How Kubernetes writes names, labels, quantities and addresses. Each check answers what is wrong, to follow the name of
//! the field.

use std::net::IpAddr;

type Said = Result<(), String>;

/// Maximum length of a name that is a DNS subdomain.
const MAX_SUBDOMAIN: usize = 253;
/// Maximum length of a name that is a DNS label.
const MAX_LABEL: usize = 63;
/// Maximum length of the name of a port (RFC 6335).
const MAX_PORT_NAME: usize = 15;
/// Longest path of a route: the limit of the Gateway API, so that a rule fits every backend.
const MAX_PATH: usize = 1024;
/// Largest exponent and longest mantissa of a quantity that are calculated with; what is beyond is no size of anything.
const MAX_DIGITS: usize = 30;

fn is_label(text: &str) -> bool {
    let edge = |c: u8| c.is_ascii_lowercase() || c.is_ascii_digit();
    let bytes = text.as_bytes();
    (1..=MAX_LABEL).contains(&bytes.len())
        && bytes.iter().all(|&c| edge(c) || c == b'-')
        && bytes.first().is_some_and(|&c| edge(c))
        && bytes.last().is_some_and(|&c| edge(c))
}

/// A DNS label of RFC 1123: namespaces, containers, volumes.
pub(crate) fn label(text: &str) -> Said {
    if is_label(text) {
        return Ok(());
    }
    Err(format!(
        "{text:?} is not a name; expected 1 to {MAX_LABEL} of a-z, 0-9 and hyphen, beginning and ending with a \
         letter or digit"
    ))
}

/// A DNS label of RFC 1035: services.
pub(crate) fn label_1035(text: &str) -> Said {
    if is_label(text) && text.starts_with(|c: char| c.is_ascii_lowercase()) {
        return Ok(());
    }
    Err(format!(
        "{text:?} is not a name; expected 1 to {MAX_LABEL} of a-z, 0-9 and hyphen, beginning with a letter and ending \
         with a letter or digit"
    ))
}

fn is_subdomain(text: &str) -> bool {
    let part = |part: &str| {
        let edge = |c: u8| c.is_ascii_lowercase() || c.is_ascii_digit();
        let bytes = part.as_bytes();
        bytes.iter().all(|&c| edge(c) || c == b'-')
            && bytes.first().is_some_and(|&c| edge(c))
            && bytes.last().is_some_and(|&c| edge(c))
    };
    (1..=MAX_SUBDOMAIN).contains(&text.len()) && text.split('.').all(part)
}

/// A DNS subdomain of RFC 1123: most names.
pub(crate) fn subdomain(text: &str) -> Said {
    if is_subdomain(text) {
        return Ok(());
    }
    Err(format!(
        "{text:?} is not a name; expected 1 to {MAX_SUBDOMAIN} of a-z, 0-9, hyphen and dot, each part beginning and ending \
         with a letter or digit"
    ))
}

/// A key of a label or annotation, or the name of a resource: a name, with an optional DNS subdomain before it.
pub(crate) fn qualified(text: &str) -> Said {
    drover_core::name::check_label(text, "")
}

/// A value of a label.
pub(crate) fn label_value(text: &str) -> Said {
    drover_core::name::check_label("key", text).map_err(|_| {
        format!(
            "{text:?} is not a label value; expected at most {MAX_LABEL} of a-z, A-Z, 0-9, hyphen, underscore and dot, \
             beginning and ending with a letter or digit"
        )
    })
}

/// The name of a port of a container (RFC 6335).
pub(crate) fn port_name(text: &str) -> Said {
    let good = (1..=MAX_PORT_NAME).contains(&text.len())
        && is_label(text)
        && text.contains(|c: char| c.is_ascii_lowercase())
        && !text.contains("--");
    if good {
        return Ok(());
    }
    Err(format!(
        "{text:?} is not a port name; expected 1 to {MAX_PORT_NAME} of a-z, 0-9 and hyphen, at least one letter, and \
         no hyphen at an end or beside another"
    ))
}

/// A number of a port.
pub(crate) fn port(number: u32) -> Said {
    if (1..=65_535).contains(&number) {
        return Ok(());
    }
    Err(format!("{number} is not a port; expected 1 to 65535"))
}

/// A key of a configuration. The answer does not repeat it, because it may be content in the wrong place.
pub(crate) fn configuration_key(text: &str) -> Said {
    let good = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
    let sized = (1..=MAX_SUBDOMAIN).contains(&text.len());
    if sized && text.chars().all(good) && text != "." && !text.starts_with("..") {
        return Ok(());
    }
    Err(format!(
        "is not a key; expected 1 to {MAX_SUBDOMAIN} of a-z, A-Z, 0-9, hyphen, underscore and dot, not `.` and not \
         beginning with `..`"
    ))
}

/// The name of an environment variable.
pub(crate) fn variable(text: &str) -> Said {
    if !text.is_empty()
        && text
            .bytes()
            .all(|c| (b' '..=b'~').contains(&c) && c != b'=')
    {
        return Ok(());
    }
    Err("is not a variable name; expected printable ASCII characters without `=`".to_owned())
}

/// A path that stays below where it begins.
pub(crate) fn descending(text: &str) -> Said {
    if text.starts_with('/') {
        return Err("must be relative".to_owned());
    }
    no_parent(text)
}

/// A path without `..`.
pub(crate) fn no_parent(text: &str) -> Said {
    if text.split('/').any(|part| part == "..") {
        return Err("must not contain `..`".to_owned());
    }
    if text.contains('\0') {
        return Err("must not contain a NUL character".to_owned());
    }
    Ok(())
}

/// An IP address.
pub(crate) fn ip(text: &str) -> Result<IpAddr, String> {
    text.parse()
        .map_err(|_| format!("{text:?} is not an IP address"))
}

/// A range of IP addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Cidr {
    bits: u128,
    prefix: u32,
    width: u32,
}

impl Cidr {
    pub(crate) fn read(text: &str) -> Result<Self, String> {
        let wrong = || format!("{text:?} is not a range of IP addresses (10.0.0.0/8, fd00::/8)");
        let (address, prefix) = text.split_once('/').ok_or_else(wrong)?;
        let (bits, width) = match address.parse().map_err(|_| wrong())? {
            IpAddr::V4(address) => (u128::from(address.to_bits()), 32),
            IpAddr::V6(address) => (address.to_bits(), 128),
        };
        let digits = !prefix.is_empty() && prefix.bytes().all(|c| c.is_ascii_digit());
        let leading = prefix.len() > 1 && prefix.starts_with('0');
        let prefix: u32 = prefix.parse().map_err(|_| wrong())?;
        if !digits || leading || prefix > width {
            return Err(wrong());
        }
        Ok(Self {
            bits,
            prefix,
            width,
        })
    }

    /// Whether the other one is inside this one, and smaller.
    pub(crate) fn holds(self, other: Self) -> bool {
        let network = |bits: u128| bits.checked_shr(self.width - self.prefix).unwrap_or(0);
        self.width == other.width
            && self.prefix < other.prefix
            && network(self.bits) == network(other.bits)
    }
}

/// A host of a rule: a DNS name, or one with an asterisk for its first part.
pub(crate) fn host(text: &str) -> Said {
    if text.parse::<IpAddr>().is_ok() {
        return Err(format!("{text:?} is an IP address; expected a DNS name"));
    }
    if is_subdomain(text.strip_prefix("*.").unwrap_or(text)) {
        return Ok(());
    }
    Err(format!(
        "{text:?} is not a host; expected a DNS name in lower case (a.example, *.example)"
    ))
}

/// A name that DNS resolves, with or without a dot at its end.
pub(crate) fn dns_name(text: &str) -> Said {
    if is_subdomain(text.strip_suffix('.').unwrap_or(text)) {
        return Ok(());
    }
    Err(format!("{text:?} is not a DNS name"))
}

/// A domain in which names are searched; underscores are in use there.
pub(crate) fn search_domain(text: &str) -> Said {
    if text == "." {
        return Ok(());
    }
    dns_name(&text.replace('_', "-"))
}

/// A path of a URL, as an ingress compares it.
pub(crate) fn route(text: &str) -> Said {
    regular(text)?;
    if !text.starts_with('/') {
        return Err(format!("{text:?} does not begin with a slash"));
    }
    let lower = text.to_ascii_lowercase();
    let inside = ["//", "/./", "/../", "%2f"];
    if let Some(bad) = inside.into_iter().find(|bad| lower.contains(bad)) {
        return Err(format!("{text:?} contains `{bad}`"));
    }
    if let Some(bad) = ["/.", "/.."].into_iter().find(|bad| text.ends_with(bad)) {
        return Err(format!("{text:?} ends with `{bad}`"));
    }
    Ok(())
}

/// A regular expression of paths. What it means is the backend's to say.
pub(crate) fn regular(text: &str) -> Said {
    if text.is_empty() {
        return Err("is required".to_owned());
    }
    if text.len() > MAX_PATH {
        return Err(format!("is longer than {MAX_PATH} bytes"));
    }
    if text.chars().any(char::is_control) {
        return Err("contains a control character".to_owned());
    }
    Ok(())
}

/// A quantity, in billionths.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Quantity(i128);

impl Quantity {
    /// Whether it is a whole number.
    pub(crate) fn is_whole(self) -> bool {
        self.0 % 1_000_000_000 == 0
    }

    pub(crate) fn read(text: &str) -> Result<Self, String> {
        Self::parse(text).ok_or_else(|| {
            format!("{text:?} is not a quantity; expected a number with an optional suffix (250m, 1.5, 64Mi, 2G)")
        })
    }

    fn parse(text: &str) -> Option<Self> {
        let (negative, rest) = match text.strip_prefix(['-', '+']) {
            Some(rest) => (text.starts_with('-'), rest),
            None => (false, text),
        };
        let end = rest
            .find(|c: char| !c.is_ascii_digit() && c != '.')
            .unwrap_or(rest.len());
        let (mantissa, suffix) = rest.split_at(end);
        let (whole, fraction) = mantissa.split_once('.').unwrap_or((mantissa, ""));
        if mantissa.len() > MAX_DIGITS
            || fraction.contains('.')
            || (whole.is_empty() && fraction.is_empty())
        {
            return None;
        }
        let digits: i128 = format!("{whole}{fraction}").parse().ok()?;
        let scale = i32::try_from(fraction.len()).ok()?;
        let (factor, ten) = Self::suffix(suffix)?;
        let value = digits.checked_mul(factor)?;
        let ten = ten + 9 - scale;
        let power = 10_i128.checked_pow(ten.unsigned_abs())?;
        // Smaller than a billionth counts as the next one, as in Kubernetes.
        let value = match ten {
            0.. => value.checked_mul(power)?,
            _ => value.checked_add(power - 1)? / power,
        };
        Some(Self(if negative { -value } else { value }))
    }

    /// Factor, and power of ten.
    fn suffix(text: &str) -> Option<(i128, i32)> {
        let binary = |power: u32| Some((1_i128 << (10 * power), 0));
        match text {
            "" => Some((1, 0)),
            "n" => Some((1, -9)),
            "u" => Some((1, -6)),
            "m" => Some((1, -3)),
            "k" => Some((1, 3)),
            "M" => Some((1, 6)),
            "G" => Some((1, 9)),
            "T" => Some((1, 12)),
            "P" => Some((1, 15)),
            "E" => Some((1, 18)),
            "Ki" => binary(1),
            "Mi" => binary(2),
            "Gi" => binary(3),
            "Ti" => binary(4),
            "Pi" => binary(5),
            "Ei" => binary(6),
            other => {
                let exponent = other.strip_prefix(['e', 'E'])?;
                let digits = exponent.strip_prefix(['-', '+']).unwrap_or(exponent);
                let good = !digits.is_empty() && digits.bytes().all(|c| c.is_ascii_digit());
                let exponent: i32 = exponent.parse().ok()?;
                (good && exponent.unsigned_abs() <= 18).then_some((1, exponent))
            }
        }
    }
}
