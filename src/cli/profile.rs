//! The credentials file that the published clients share: `~/.fountain/credentials`, an INI with a section a profile
//! (http-api 6.1). Written with mode 0600 through a temporary file, other profiles and unknown keys kept.

use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use anyhow::Context as _;
use secrecy::{ExposeSecret, SecretString};

pub const DEFAULT: &str = "default";

#[derive(Clone, Debug, Default)]
pub struct Profile {
    pub base_url: Option<String>,
    pub api_key: Option<SecretString>,
}

/// Where the file is below a home folder.
pub fn path(home: &Path) -> PathBuf {
    home.join(".fountain").join("credentials")
}

/// Reads one profile out of the file's text. Values may be quoted; unknown sections and keys are passed over.
pub fn parse(text: &str, profile: &str) -> Profile {
    let mut found = Profile::default();
    let mut inside = false;
    for line in text.lines().map(str::trim) {
        if let Some(name) = line.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')) {
            inside = name.trim() == profile;
            continue;
        }
        let Some((key, value)) = line.split_once('=').filter(|_| inside && !line.starts_with(['#', ';'])) else {
            continue;
        };
        let value = value.trim().trim_matches('"');
        match key.trim() {
            "api_key" => found.api_key = Some(value.into()),
            "base_url" => found.base_url = Some(value.trim_end_matches('/').to_owned()),
            _ => {}
        }
    }
    found
}

/// The file's text with one profile set to these values.
pub fn with(text: &str, profile: &str, base_url: &str, api_key: &SecretString) -> String {
    let mut lines: Vec<String> = Vec::new();
    let mut inside = false;
    for line in text.lines() {
        let trimmed = line.trim();
        if trimmed.starts_with('[') && trimmed.ends_with(']') {
            inside = trimmed.trim_matches(['[', ']']).trim() == profile;
            if inside {
                continue;
            }
        }
        let ours = ["api_key", "base_url"]
            .iter()
            .any(|key| trimmed.split_once('=').is_some_and(|(name, _)| name.trim() == *key));
        if !(inside && (ours || trimmed.is_empty())) {
            lines.push(line.to_owned());
        }
    }
    let mut out = format!(
        "[{profile}]\napi_key = \"{}\"\nbase_url = \"{}\"\n",
        api_key.expose_secret(),
        base_url.trim_end_matches('/')
    );
    if lines.iter().any(|line| !line.trim().is_empty()) {
        out.push('\n');
        out.push_str(&lines.join("\n"));
        out.push('\n');
    }
    out
}

/// Loads a profile; an absent file is an empty profile.
///
/// # Errors
/// When the file is there and cannot be read.
pub fn load(home: Option<&Path>, profile: &str) -> anyhow::Result<Profile> {
    let Some(home) = home else {
        return Ok(Profile::default());
    };
    match std::fs::read_to_string(path(home)) {
        Ok(text) => Ok(parse(&text, profile)),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(Profile::default()),
        Err(error) => Err(error).context("the credentials file could not be read"),
    }
}

/// Stores a profile.
///
/// # Errors
/// When the file cannot be written.
pub fn store(home: &Path, profile: &str, base_url: &str, api_key: &SecretString) -> anyhow::Result<()> {
    let path = path(home);
    let folder = path.parent().context("the credentials file has no folder")?;
    std::fs::create_dir_all(folder).context("the folder of the credentials could not be made")?;
    let text = std::fs::read_to_string(&path).unwrap_or_default();
    write_private(&path, with(&text, profile, base_url, api_key).as_bytes())
}

/// Writes a file that only its owner may read: aside first, then renamed over.
///
/// # Errors
/// When the folder cannot be written.
pub fn write_private(path: &Path, bytes: &[u8]) -> anyhow::Result<()> {
    let aside = path.with_extension("new");
    let _ = std::fs::remove_file(&aside);
    let mut file = std::fs::OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(&aside)
        .with_context(|| format!("{} could not be written", path.display()))?;
    file.write_all(bytes)?;
    file.sync_all()?;
    std::fs::rename(&aside, path).with_context(|| format!("{} could not be replaced", path.display()))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn other_profiles_and_unknown_keys_survive() {
        let before =
            "[default]\napi_key = \"ftn_old\"\nbase_url = \"http://a\"\nteam = blue\n\n[work]\napi_key = \"ftn_w\"\n";
        let after = with(before, "default", "http://b/", &"ftn_new".into());
        let (default, work) = (parse(&after, "default"), parse(&after, "work"));
        assert_eq!(default.api_key.unwrap().expose_secret(), "ftn_new");
        assert_eq!(default.base_url.as_deref(), Some("http://b"));
        assert_eq!(work.api_key.unwrap().expose_secret(), "ftn_w");
        assert!(parse(&after, "nobody").api_key.is_none());
    }

    #[test]
    fn the_file_is_private_and_replaced_whole() {
        let home = tempfile::tempdir().unwrap();
        store(home.path(), "default", "http://a", &"ftn_1".into()).unwrap();
        store(home.path(), "default", "http://a", &"ftn_2".into()).unwrap();
        let mode = std::fs::metadata(path(home.path())).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
        assert_eq!(
            load(Some(home.path()), "default")
                .unwrap()
                .api_key
                .unwrap()
                .expose_secret(),
            "ftn_2"
        );
    }
}
