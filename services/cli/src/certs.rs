//! A certificate authority and certificates for evaluation and for small installations.

mod revoke;

use std::{
    fs::{self, OpenOptions},
    io::{self, Write},
    os::unix::fs::{DirBuilderExt, OpenOptionsExt},
    path::{Path, PathBuf},
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use anyhow::Context as _;
use drover_tls::{Certificate, explain::utc, peer};
use rcgen::{
    BasicConstraints, CertificateParams, DistinguishedName, DnType, ExtendedKeyUsagePurpose, IsCa,
    Issuer, KeyPair, KeyUsagePurpose, SanType,
};

use crate::{
    cli::{CertsCommand, CertsInitArgs},
    failure::{Exit, Failure, Outcome},
    output::{self, Table},
};

/// Roles and names of the services that get a certificate. The name is also that of their container.
const SERVICES: [(&str, &str); 3] = [
    ("orchestrator", "orchestrator"),
    ("platform", "platform-k8s"),
    ("platform", "platform-cloud"),
];
/// Role and name of the initial administrator.
const ADMIN: (&str, &str) = ("admin", "admin");
/// File names that are in use for other purposes.
const RESERVED: [&str; 5] = ["ca", "crl", "admin", ORCHESTRATOR, ETCD];
/// Names that all of a kind have in common, by which etcd admits its clients and its members.
const ORCHESTRATOR: &str = "orchestrator";
const ETCD: &str = "etcd";
/// Roles of users.
const PEOPLE: [&str; 5] = [
    "viewer",
    "operator",
    "admin",
    "resource-viewer",
    "resource-operator",
];
/// Names that every service has, for evaluation on one machine.
const HERE: [&str; 3] = ["localhost", "127.0.0.1", "::1"];
/// Validity of the authority in days.
const AUTHORITY_DAYS: u32 = 3650;
/// Certificates are backdated by this much to allow for clock skew.
const BEFORE: Duration = Duration::from_secs(5 * 60);
const DAY: Duration = Duration::from_secs(24 * 60 * 60);
/// Only the owner may read a key.
const KEY_MODE: u32 = 0o600;
const CERT_MODE: u32 = 0o644;

pub(crate) fn run(command: CertsCommand) -> Outcome {
    match command {
        CertsCommand::Init(args) => init(&args),
        CertsCommand::Show { paths } => show(&paths),
        CertsCommand::Revoke { certificates, list } => revoke::revoke(&certificates, &list),
        CertsCommand::Crl(list) => revoke::list(&list),
    }
}

/// Whether a certificate was created or existed.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Made {
    New,
    Kept,
}

fn init(args: &CertsInitArgs) -> Outcome {
    let mut services = SERVICES.to_vec();
    let further = [
        ("platform", &args.platforms),
        ("orchestrator", &args.orchestrators),
        ("etcd", &args.etcd),
    ];
    for (role, name) in further
        .into_iter()
        .flat_map(|(role, names)| names.iter().map(move |name| (role, name.as_str())))
    {
        let bad = || Failure::usage(format!("`{name}` is not a valid name of a server"));
        let good = |c: char| c.is_ascii_alphanumeric() || "-.".contains(c);
        if name.starts_with('.') || !name.chars().all(good) {
            return Err(bad());
        }
        drover_client::check_server_name(name).map_err(|_| bad())?;
        let known = services.iter().find(|(_, known)| *known == name);
        if RESERVED.contains(&name) || known.is_some_and(|(other, _)| *other != role) {
            return Err(Failure::usage(format!("`{name}`: the name is taken")));
        }
        if known.is_none() {
            services.push((role, name));
        }
    }
    let mut people = vec![ADMIN];
    for user in &args.users {
        let wrong = || {
            Failure::usage(format!(
                "`{user}` is not a user; write ROLE/NAME with one of {}",
                PEOPLE.join(", ")
            ))
        };
        let (role, name) = user.split_once('/').ok_or_else(wrong)?;
        let good = |c: char| c.is_ascii_alphanumeric() || "-_.@".contains(c);
        if !PEOPLE.contains(&role)
            || name.is_empty()
            || name.starts_with('.')
            || !name.chars().all(good)
        {
            return Err(wrong());
        }
        // Their files are named without the role.
        let taken = services
            .iter()
            .chain(&people)
            .any(|(_, known)| *known == name);
        if taken || RESERVED.contains(&name) {
            return Err(Failure::usage(format!(
                "`{user}`: the name {name} is taken"
            )));
        }
        people.push((role, name));
    }
    for name in &args.names {
        if [ORCHESTRATOR, ETCD].contains(&name.as_str()) {
            return Err(Failure::usage(format!(
                "`{name}` cannot be a name of all services: etcd would let each of them in"
            )));
        }
        drover_client::check_server_name(name)
            .map_err(|error| Failure::usage(error.to_string()))?;
    }
    let directory = &args.dir;
    fs::DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(directory)
        .with_context(|| format!("cannot make {}", directory.display()))?;
    let (authority, made) = authority(directory)?;
    report(
        directory,
        "ca",
        made,
        "the authority; keep ca.key away from the services",
    )?;
    for (role, name) in services {
        let mut names: Vec<String> = HERE.iter().map(ToString::to_string).collect();
        names.push(name.to_owned());
        // Several of a kind have one name in common: clients call it whoever answers, and etcd can admit by it.
        if role != "platform" && role != name {
            names.push(role.to_owned());
        }
        names.extend(args.names.iter().cloned());
        let wanted = Wanted {
            role,
            name,
            // Orchestrators call platforms and etcd, members of etcd each other; platforms call nobody.
            client: role != "platform",
            names,
            days: args.days,
        };
        let made = wanted.make(directory, authority.as_ref())?;
        report(directory, name, made, &peer::uri(role, name))?;
    }
    for (role, name) in &people {
        let wanted = Wanted {
            role,
            name,
            client: true,
            names: Vec::new(),
            days: args.days,
        };
        let made = wanted.make(directory, authority.as_ref())?;
        report(directory, name, made, &peer::uri(role, name))?;
    }
    output::line(&next(directory))?;
    Ok(Exit::Done)
}

fn report(directory: &Path, name: &str, made: Made, what: &str) -> io::Result<()> {
    let word = match made {
        Made::New => "made",
        Made::Kept => "kept",
    };
    let file = directory.join(format!("{name}.pem"));
    output::line(&format!("{word} {}   {what}", file.display()))
}

fn next(directory: &Path) -> String {
    let at = |name: &str| directory.join(name).display().to_string();
    let tls = |name: &str| {
        format!(
            "--tls-cert {} --tls-key {} --tls-client-ca {}",
            at(&format!("{name}.pem")),
            at(&format!("{name}.key")),
            at("ca.pem")
        )
    };
    format!(
        "Next:  drover-platform-cloud {}\n       drover-orchestrator {} --platform-ca {}\n       \
         drover context set dev https://127.0.0.1:7400 --ca {} --cert {} --key {}\n       drover status --context dev",
        tls("platform-cloud"),
        tls("orchestrator"),
        at("ca.pem"),
        at("ca.pem"),
        at("admin.pem"),
        at("admin.key"),
    )
}

/// The existing authority. `None` if its key, which may be kept elsewhere, is missing. Fails if there is no authority.
fn authority_there(directory: &Path) -> anyhow::Result<Option<Issuer<'static, KeyPair>>> {
    let (cert, key) = (directory.join("ca.pem"), directory.join("ca.key"));
    if cert.try_exists()? && !key.try_exists()? {
        return Ok(None);
    }
    let failed = || format!("cannot use the authority in {}", directory.display());
    let key =
        KeyPair::from_pem(&fs::read_to_string(&key).with_context(failed)?).with_context(failed)?;
    let text = fs::read_to_string(&cert).with_context(failed)?;
    let issuer = Issuer::from_ca_cert_pem(&text, key).with_context(failed)?;
    Ok(Some(issuer))
}

/// The authority. Without its key nothing new can be signed.
fn authority(directory: &Path) -> anyhow::Result<(Option<Issuer<'static, KeyPair>>, Made)> {
    let (cert, key) = (directory.join("ca.pem"), directory.join("ca.key"));
    if cert.try_exists()? && !key.try_exists()? || both(&cert, &key)? {
        return Ok((authority_there(directory)?, Made::Kept));
    }
    let mut params = CertificateParams::new(Vec::<String>::new())?;
    params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
    validity(&mut params, AUTHORITY_DAYS);
    let pair = KeyPair::generate()?;
    // Certificates and revocation lists identify their authority by its name, which therefore has to be unique.
    let id = params.key_identifier(&pair);
    let id: String = id
        .iter()
        .take(4)
        .map(|byte| format!("{byte:02x}"))
        .collect();
    params.distinguished_name = named(&format!("Drover development authority {id}"));
    let made = params.self_signed(&pair)?;
    write_new(&key, &pair.serialize_pem(), KEY_MODE)?;
    write_new(&cert, &made.pem(), CERT_MODE)?;
    Ok((Some(Issuer::new(params, pair)), Made::New))
}

struct Wanted<'a> {
    role: &'a str,
    name: &'a str,
    client: bool,
    names: Vec<String>,
    days: u32,
}

impl Wanted<'_> {
    fn make(
        &self,
        directory: &Path,
        authority: Option<&Issuer<'static, KeyPair>>,
    ) -> anyhow::Result<Made> {
        let cert = directory.join(format!("{}.pem", self.name));
        let key = directory.join(format!("{}.key", self.name));
        if both(&cert, &key)? {
            self.compare(&cert)?;
            return Ok(Made::Kept);
        }
        let authority = authority.with_context(|| {
            format!(
                "{} is missing and ca.key, which would sign it, is not in {}: put ca.key there while it is made",
                cert.display(),
                directory.display()
            )
        })?;
        let mut params = CertificateParams::new(self.names.clone())?;
        params.distinguished_name = named(self.name);
        let uri = peer::uri(self.role, self.name);
        params
            .subject_alt_names
            .push(SanType::URI(uri.as_str().try_into()?));
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        if !self.names.is_empty() {
            params
                .extended_key_usages
                .push(ExtendedKeyUsagePurpose::ServerAuth);
        }
        if self.client {
            params
                .extended_key_usages
                .push(ExtendedKeyUsagePurpose::ClientAuth);
        }
        params.use_authority_key_identifier_extension = true;
        validity(&mut params, self.days);
        let pair = KeyPair::generate()?;
        let made = params.signed_by(&pair, authority)?;
        write_new(&key, &pair.serialize_pem(), KEY_MODE)?;
        write_new(&cert, &made.pem(), CERT_MODE)?;
        Ok(Made::New)
    }
}

impl Wanted<'_> {
    /// Warns about names that an existing certificate lacks.
    fn compare(&self, path: &Path) -> anyhow::Result<()> {
        let there = Certificate::read_file(path)?;
        let Some(there) = there.first() else {
            return Ok(());
        };
        let uri = peer::uri(self.role, self.name);
        let lacking: Vec<&str> = self
            .names
            .iter()
            .filter(|name| !there.names.contains(name))
            .map(String::as_str)
            .chain((!there.uris.contains(&uri)).then_some(uri.as_str()))
            .collect();
        if !lacking.is_empty() {
            complain!(
                "{} is kept and is not for {}; take it and its key away to have it made anew",
                path.display(),
                lacking.join(", ")
            );
        }
        Ok(())
    }
}

fn named(name: &str) -> DistinguishedName {
    let mut named = DistinguishedName::new();
    named.push(DnType::CommonName, name);
    named
}

fn validity(params: &mut CertificateParams, days: u32) {
    let now = SystemTime::now();
    params.not_before = (now - BEFORE).into();
    params.not_after = (now + DAY * days).into();
}

/// Whether both files exist. Fails if only one of them does.
fn both(cert: &Path, key: &Path) -> anyhow::Result<bool> {
    match (cert.try_exists()?, key.try_exists()?) {
        (true, true) => Ok(true),
        (false, false) => Ok(false),
        (there, _) => {
            let (has, lacks) = if there { (cert, key) } else { (key, cert) };
            anyhow::bail!(
                "{} is there and {} is not; nothing is overwritten: put it back, or take the other away",
                has.display(),
                lacks.display()
            )
        }
    }
}

fn write_new(path: &Path, text: &str, mode: u32) -> anyhow::Result<()> {
    let failed = || format!("cannot write {}", path.display());
    let mut file = OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(mode)
        .open(path)
        .with_context(failed)?;
    file.write_all(text.as_bytes())
        .and_then(|()| file.sync_all())
        .with_context(failed)
}

fn now() -> i64 {
    SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .map_or(0, |since| {
            i64::try_from(since.as_secs()).unwrap_or(i64::MAX)
        })
}

fn show(paths: &[PathBuf]) -> Outcome {
    let mut files = Vec::new();
    for path in paths {
        if path.is_dir() {
            let mut found: Vec<PathBuf> = fs::read_dir(path)
                .with_context(|| format!("cannot read {}", path.display()))?
                .filter_map(|entry| Some(entry.ok()?.path()))
                .filter(|path| {
                    let ending = path.extension().and_then(|ending| ending.to_str());
                    // The directory may also contain a revocation list.
                    matches!(ending, Some("pem" | "crt")) && !path.ends_with(revoke::LIST)
                })
                .collect();
            found.sort();
            files.extend(found);
        } else {
            files.push(path.clone());
        }
    }
    let now = now();
    let mut table = Table::new(&["FILE", "STATUS", "IDENTITY", "NAMES", "ISSUER", "EXPIRES"]);
    let mut bad = false;
    let mut revoked = revoke::Index::default();
    for path in paths {
        revoked.add(&revoke::Index::beside(path)?);
    }
    for file in files {
        let read = Certificate::read_file(&file).map_err(|e| Failure::failed(e.to_string()))?;
        for one in read {
            let status = if revoked.holds(&one) {
                "Revoked"
            } else if one.not_after < now {
                "Expired"
            } else if one.not_before > now {
                "NotYetValid"
            } else {
                "Valid"
            };
            bad |= status != "Valid";
            let identity = one.uris.first().or(one.common_name.as_ref());
            table.rows.push(vec![
                file.display().to_string(),
                status.to_owned(),
                identity.cloned().unwrap_or_default(),
                one.names.join(","),
                one.issuer,
                utc(one.not_after),
            ]);
        }
    }
    output::print(&table.render(true, false))?;
    Ok(if bad { Exit::Failed } else { Exit::Done })
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    fn args(dir: &Path) -> CertsInitArgs {
        CertsInitArgs {
            dir: dir.to_owned(),
            names: vec!["drover.example.com".to_owned()],
            platforms: vec!["rack-7".to_owned(), "platform-k8s".to_owned()],
            orchestrators: vec!["drover-2".to_owned()],
            etcd: vec!["etcd-1".to_owned()],
            users: vec!["viewer/vera".to_owned()],
            days: 30,
        }
    }

    #[test]
    fn what_is_made_says_who_it_is_and_is_kept() {
        let directory = tempfile::tempdir().unwrap();
        let certs = directory.path().join("certs");
        assert_eq!(init(&args(&certs)).unwrap(), Exit::Done);
        let read = |name: &str| Certificate::read_file(&certs.join(name)).unwrap().remove(0);
        let orchestrator = read("orchestrator.pem");
        assert_eq!(
            orchestrator.uris,
            ["spiffe://drover/orchestrator/orchestrator"]
        );
        assert_eq!(
            orchestrator.names,
            [
                "localhost",
                "127.0.0.1",
                "::1",
                "orchestrator",
                "drover.example.com"
            ]
        );
        assert_eq!(
            read("platform-cloud.pem").uris,
            ["spiffe://drover/platform/platform-cloud"]
        );
        let rack = read("rack-7.pem");
        assert_eq!(rack.uris, ["spiffe://drover/platform/rack-7"]);
        assert!(rack.names.contains(&"rack-7".to_owned()));
        let second = read("drover-2.pem");
        assert_eq!(second.uris, ["spiffe://drover/orchestrator/drover-2"]);
        assert_eq!(second.names[3..5], ["drover-2", "orchestrator"]);
        let member = read("etcd-1.pem");
        assert_eq!(member.uris, ["spiffe://drover/etcd/etcd-1"]);
        assert_eq!(member.names[3..5], ["etcd-1", "etcd"]);
        assert_eq!(read("admin.pem").uris, ["spiffe://drover/admin/admin"]);
        assert_eq!(read("vera.pem").uris, ["spiffe://drover/viewer/vera"]);
        assert!(read("ca.pem").is_authority && !orchestrator.is_authority);
        for entry in fs::read_dir(&certs).unwrap() {
            let path = entry.unwrap().path();
            if path.extension().is_some_and(|ending| ending == "key") {
                let mode = fs::metadata(&path).unwrap().permissions().mode();
                assert_eq!(mode & 0o777, KEY_MODE, "{}", path.display());
            }
        }

        // Only missing files are created, signed by the same authority.
        let before = fs::read(certs.join("orchestrator.pem")).unwrap();
        fs::remove_file(certs.join("admin.pem")).unwrap();
        let failure = init(&args(&certs)).unwrap_err();
        assert!(failure.message.contains("admin.key is there"), "{failure}");
        fs::remove_file(certs.join("admin.key")).unwrap();
        init(&args(&certs)).unwrap();
        assert_eq!(fs::read(certs.join("orchestrator.pem")).unwrap(), before);
        assert_eq!(read("admin.pem").issuer, orchestrator.issuer);
        assert_eq!(show(std::slice::from_ref(&certs)).unwrap(), Exit::Done);

        // The key of the authority is kept elsewhere: it is only needed for signing.
        let key = fs::read(certs.join("ca.key")).unwrap();
        fs::remove_file(certs.join("ca.key")).unwrap();
        assert_eq!(init(&args(&certs)).unwrap(), Exit::Done);
        assert!(!certs.join("ca.key").exists());
        for file in ["vera.pem", "vera.key"] {
            fs::remove_file(certs.join(file)).unwrap();
        }
        let failure = init(&args(&certs)).unwrap_err();
        assert!(
            failure.message.contains("vera.pem is missing and ca.key"),
            "{failure}"
        );
        fs::write(certs.join("ca.key"), key).unwrap();
        init(&args(&certs)).unwrap();
        assert_eq!(read("vera.pem").issuer, orchestrator.issuer);
    }

    #[test]
    fn what_is_no_server_is_wrong_usage() {
        let directory = tempfile::tempdir().unwrap();
        for platform in ["", "ca", "orchestrator", "../x", "a b", ".x"] {
            let wrong = CertsInitArgs {
                platforms: vec![platform.to_owned()],
                ..args(directory.path())
            };
            assert_eq!(init(&wrong).unwrap_err().exit, Exit::Usage, "{platform:?}");
        }
        // One file for two servers of different kinds.
        let wrong = CertsInitArgs {
            etcd: vec!["rack-7".to_owned()],
            ..args(directory.path())
        };
        let failure = init(&wrong).unwrap_err();
        assert!(failure.message.contains("the name is taken"), "{failure}");
    }

    /// Who has one of them is let in by etcd: as its client, or as its member.
    #[test]
    fn the_names_by_which_etcd_admits_are_given_to_nobody_else() {
        let directory = tempfile::tempdir().unwrap();
        for name in ["etcd", "orchestrator"] {
            let mine = || vec![name.to_owned()];
            for wrong in [
                CertsInitArgs {
                    names: mine(),
                    ..args(directory.path())
                },
                CertsInitArgs {
                    etcd: mine(),
                    ..args(directory.path())
                },
                CertsInitArgs {
                    orchestrators: mine(),
                    ..args(directory.path())
                },
                CertsInitArgs {
                    users: vec![format!("viewer/{name}")],
                    ..args(directory.path())
                },
            ] {
                assert_eq!(init(&wrong).unwrap_err().exit, Exit::Usage, "{name}");
            }
        }
    }

    #[test]
    fn who_is_no_user_is_wrong_usage() {
        let directory = tempfile::tempdir().unwrap();
        for user in [
            "vera",
            "root/vera",
            "viewer/",
            "viewer/../x",
            "viewer/a b",
            "viewer/admin",
        ] {
            let wrong = CertsInitArgs {
                users: vec![user.to_owned()],
                ..args(directory.path())
            };
            assert_eq!(init(&wrong).unwrap_err().exit, Exit::Usage, "{user}");
        }
    }
}
