//! Revoked certificates: an index beside the authority, and the list (CRL) that servers read.

use std::{
    fs,
    path::{Path, PathBuf},
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use anyhow::Context as _;
use drover_tls::{Certificate, explain::utc};
use rcgen::{
    CertificateRevocationListParams, Issuer, KeyIdMethod, KeyPair, RevokedCertParams, SerialNumber,
};

use super::{BEFORE, CERT_MODE, DAY, authority_there, now, write_new};
use crate::{
    cli::CertsListArgs,
    failure::{Exit, Failure, Outcome},
    output,
};

/// File with the revoked certificates, one per line: serial number, time in seconds since 1970, identity.
const INDEX: &str = "revoked.txt";
/// File with the CRL.
pub(super) const LIST: &str = "crl.pem";
const HEAD: &str = "# Revoked certificates: serial number, seconds since 1970, whose it was. drover certs writes it.\n";

/// The revoked certificates.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Index(Vec<Entry>);

#[derive(Clone, Debug, PartialEq, Eq)]
struct Entry {
    serial: Vec<u8>,
    time: i64,
    whose: String,
}

impl Index {
    /// Reads the index in a directory; empty if there is none.
    fn read(directory: &Path) -> anyhow::Result<Self> {
        let path = directory.join(INDEX);
        let text = match fs::read_to_string(&path) {
            Ok(text) => text,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
                return Ok(Self::default());
            }
            Err(error) => {
                return Err(error).with_context(|| format!("cannot read {}", path.display()));
            }
        };
        let lines = text.lines().enumerate();
        let lines = lines.filter(|(_, line)| !line.is_empty() && !line.starts_with('#'));
        let entries = lines.map(|(at, line)| {
            // Skipping a line would admit a revoked certificate again.
            Entry::parse(line).with_context(|| {
                format!(
                    "line {} of {} cannot be read; expected SERIAL TIME NAME",
                    at + 1,
                    path.display()
                )
            })
        });
        Ok(Self(entries.collect::<anyhow::Result<_>>()?))
    }

    /// Reads the index beside a certificate, or in a directory of certificates.
    pub(super) fn beside(path: &Path) -> anyhow::Result<Self> {
        let parent = path.parent().unwrap_or(Path::new("."));
        Self::read(if path.is_dir() { path } else { parent })
    }

    pub(super) fn add(&mut self, other: &Self) {
        self.0.extend_from_slice(&other.0);
    }

    pub(super) fn holds(&self, certificate: &Certificate) -> bool {
        self.0
            .iter()
            .any(|entry| entry.serial == certificate.serial)
    }

    fn write(&self, directory: &Path) -> anyhow::Result<()> {
        let lines = self.0.iter().map(Entry::line);
        replace(
            &directory.join(INDEX),
            &(HEAD.to_owned() + &lines.collect::<String>()),
        )
    }
}

impl Entry {
    fn parse(line: &str) -> Option<Self> {
        let mut words = line.splitn(3, ' ');
        let hex = words
            .next()
            .filter(|hex| hex.is_ascii() && hex.len() % 2 == 0 && !hex.is_empty())?;
        let serial =
            (0..hex.len() / 2).map(|at| u8::from_str_radix(&hex[2 * at..2 * at + 2], 16).ok());
        Some(Self {
            serial: serial.collect::<Option<_>>()?,
            time: words.next()?.parse().ok()?,
            whose: words.next().unwrap_or_default().to_owned(),
        })
    }

    fn line(&self) -> String {
        let hex: String = self
            .serial
            .iter()
            .map(|byte| format!("{byte:02x}"))
            .collect();
        format!("{hex} {} {}\n", self.time, self.whose)
    }
}

/// Records certificates as revoked, and writes a new list.
pub(super) fn revoke(certificates: &[String], args: &CertsListArgs) -> Outcome {
    let issuer = issuer(&args.dir)?;
    let authority = Certificate::read_file(&args.dir.join("ca.pem"))
        .map_err(|error| Failure::failed(error.to_string()))?;
    let mut index = Index::read(&args.dir)?;
    for name in certificates {
        let path = file_of(name, &args.dir)?;
        let read =
            Certificate::read_file(&path).map_err(|error| Failure::failed(error.to_string()))?;
        let Some(certificate) = read.first() else {
            continue;
        };
        let whose = certificate
            .uris
            .first()
            .or(certificate.common_name.as_ref());
        let whose = whose.cloned().unwrap_or_default();
        let ours = authority.iter().any(|ours| certificate.is_signed_by(ours));
        if certificate.is_authority || !ours {
            return Err(Failure::failed(format!(
                "{} is not a certificate that the authority in {} has made",
                path.display(),
                args.dir.display()
            )));
        }
        if !index.holds(certificate) {
            index.0.push(Entry {
                serial: certificate.serial.clone(),
                time: now(),
                // A single line, whatever the certificate contains.
                whose: whose.chars().filter(|c| !c.is_control()).collect(),
            });
        }
        output::line(&format!("revoked {}   {whose}", path.display()))?;
    }
    // The index goes first, as it cannot be restored.
    index.write(&args.dir)?;
    sign(&index, &issuer, args)
}

/// Writes a new list of the revoked certificates.
pub(super) fn list(args: &CertsListArgs) -> Outcome {
    let issuer = issuer(&args.dir)?;
    sign(&Index::read(&args.dir)?, &issuer, args)
}

fn issuer(directory: &Path) -> anyhow::Result<Issuer<'static, KeyPair>> {
    authority_there(directory)?.with_context(|| {
        format!(
            "ca.key, which signs the list, is not in {}: put it there while the list is made",
            directory.display()
        )
    })
}

/// Resolves the name of a certificate in the directory, or a file.
fn file_of(name: &str, directory: &Path) -> Result<PathBuf, Failure> {
    let path = PathBuf::from(name);
    let there = directory.join(format!("{name}.pem"));
    if !name.contains('/') && there.is_file() {
        return Ok(there);
    }
    if path.is_file() {
        return Ok(path);
    }
    Err(Failure::failed(format!(
        "there is neither {} nor a file {name}",
        there.display()
    )))
}

fn sign(index: &Index, issuer: &Issuer<'static, KeyPair>, args: &CertsListArgs) -> Outcome {
    let now = SystemTime::now();
    let end = now + DAY * args.days;
    let since = |time: SystemTime| time.duration_since(UNIX_EPOCH).unwrap_or_default();
    let revoked = index.0.iter().map(|entry| RevokedCertParams {
        serial_number: SerialNumber::from_slice(&entry.serial),
        revocation_time: (UNIX_EPOCH + Duration::from_secs(entry.time.unsigned_abs())).into(),
        reason_code: None,
        invalidity_date: None,
    });
    let params = CertificateRevocationListParams {
        this_update: (now - BEFORE).into(),
        next_update: end.into(),
        // Increases from list to list.
        crl_number: SerialNumber::from(u64::try_from(since(now).as_millis()).unwrap_or(u64::MAX)),
        issuing_distribution_point: None,
        revoked_certs: revoked.collect(),
        key_identifier_method: KeyIdMethod::Sha256,
    };
    let made = params
        .signed_by(issuer)
        .and_then(|list| list.pem())
        .context("the list cannot be signed")?;
    let path = args.dir.join(LIST);
    replace(&path, &made)?;
    let end = i64::try_from(since(end).as_secs()).unwrap_or(i64::MAX);
    output::line(&format!(
        "made {}   {} revoked, holds until {}",
        path.display(),
        index.0.len(),
        utc(end)
    ))?;
    Ok(Exit::Done)
}

/// Replaces a file atomically: servers read it at any time.
fn replace(path: &Path, text: &str) -> anyhow::Result<()> {
    let mut new = path.as_os_str().to_owned();
    new.push(".new");
    let new = PathBuf::from(new);
    if new.exists() {
        fs::remove_file(&new).with_context(|| format!("cannot remove {}", new.display()))?;
    }
    write_new(&new, text, CERT_MODE)?;
    fs::rename(&new, path).with_context(|| format!("cannot write {}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_of_the_index_is_read_as_it_was_written_and_a_broken_one_refused() {
        let entry = Entry {
            serial: vec![0, 0x7f, 0xff],
            time: 1_800_000_000,
            whose: "spiffe://drover/admin/ann of the office".to_owned(),
        };
        assert_eq!(Entry::parse(entry.line().trim_end()), Some(entry));
        let directory = tempfile::tempdir().unwrap();
        for line in ["x", "7f", "7f soon ann", "7 1 ann", "zz 1 ann"] {
            fs::write(directory.path().join(INDEX), format!("# one\n\n{line}\n")).unwrap();
            let why = format!("{:#}", Index::read(directory.path()).unwrap_err());
            assert!(why.contains("line 3 of") && why.contains(INDEX), "{why}");
        }
    }
}
