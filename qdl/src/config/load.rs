//! Loads a configuration: from text to checked types.

use std::{
    collections::BTreeMap,
    fs::File,
    io::Read,
    path::{Path, PathBuf},
};

use fabric::kinds::{EachFabric, NicFabric};
use serde::{Deserialize, Serialize, de::DeserializeOwned};
use serde_json::Value;

use super::{
    accelerator::AcceleratorConfig,
    document::{Document, TextPosition, options},
    error::{ConfigError, Problem},
    frontend::FrontendConfig,
    nic::NicConfig,
    nic_keys::{check_keys, check_nics, fabric_of, keys_of},
    root::{ConfigFile, NoSection, SectionKeys},
    rules::Findings,
    words::{describe, is_about_value, keys_here},
};

const MAX_FILE_BYTES: u64 = 1 << 20;

/// Reads and checks a file, the keys `K` of other crates too, and checks that the files it names
/// exist. Paths are relative to the folder `base`; default: the file's folder.
///
/// # Errors
/// [`ConfigError`] names file, line and column.
pub fn load<C: ConfigFile, K: SectionKeys<C>>(
    path: &Path,
    base: Option<&Path>,
) -> Result<(C, K), ConfigError> {
    let mut source = Source::read(path)?;
    if let Some(base) = base {
        source.base = base.to_owned();
    }
    let (config, keys) = source.parse::<C, K>()?;
    source.check_files(&[config.files(), keys.files()].concat())?;
    Ok((config, keys))
}

/// Checks YAML, the keys `K` of other crates too. `origin` names the text in errors; paths are
/// relative to the folder `base`. Reads no file.
///
/// # Errors
/// [`ConfigError::Invalid`] lists all problems.
pub fn parse<C: ConfigFile, K: SectionKeys<C>>(
    text: &str,
    origin: &str,
    base: &Path,
) -> Result<(C, K), ConfigError> {
    Source::new(text, origin, base).parse()
}

/// Checks a configuration made in code as [`parse`] checks YAML, and returns it. A field counts as
/// set if it differs from its default. Reads no file, and no key of other crates.
///
/// # Errors
/// [`ConfigError::Invalid`] lists all problems, each with its field.
pub fn check<C: ConfigFile>(mut config: C) -> Result<C, ConfigError> {
    let keys = keys_set(&mut config).map_err(|error| ConfigError::Invalid {
        problems: vec![Problem::of_field("paths", error.to_string(), None)],
    })?;
    let document = Document::new(&keys.to_string());
    let mut out = Findings::new(&document, None, "");
    check_keys(config.nics().len(), C::SIDE, &mut out);
    check_values(&mut config, &mut out);
    out.finish(Some(config))
}

/// Checks the values of `config`, alone and together.
fn check_values<C: ConfigFile>(config: &mut C, out: &mut Findings<'_>) {
    out.ranges("", config.validate());
    check_nics(config.nics(), C::SIDE, out);
    config.check(out);
}

/// Returns the fields that differ from their defaults, without their values.
fn keys_set<C: ConfigFile>(config: &mut C) -> serde_json::Result<Value> {
    let default = serde_json::to_value(C::default())?;
    let mut keys = differing(&serde_json::to_value(&*config)?, &default);
    let nics = config.nics().iter().map(|nic| {
        let default = serde_json::to_value(NicConfig::from(nic.fabric.defaults()))?;
        Ok(differing(&serde_json::to_value(nic)?, &default))
    });
    keys["nics"] = Value::Array(nics.collect::<serde_json::Result<_>>()?);
    Ok(keys)
}

fn differing(value: &Value, default: &Value) -> Value {
    let Value::Object(keys) = value else {
        return Value::Null;
    };
    let set = keys.iter().filter(|(key, value)| default[key] != **value);
    set.map(|(key, value)| (key.clone(), differing(value, &default[key])))
        .collect()
}

/// [`parse`] without the keys of other crates, for a frontend.
///
/// # Errors
/// As [`parse`].
pub fn parse_frontend(
    text: &str,
    origin: &str,
    base: &Path,
) -> Result<FrontendConfig, ConfigError> {
    parse::<_, NoSection>(text, origin, base).map(|(config, _)| config)
}

/// [`parse`] without the keys of other crates, for an accelerator.
///
/// # Errors
/// As [`parse`].
pub fn parse_accelerator(
    text: &str,
    origin: &str,
    base: &Path,
) -> Result<AcceleratorConfig, ConfigError> {
    parse::<_, NoSection>(text, origin, base).map(|(config, _)| config)
}

/// Returns the keys that have a scalar or list value, with their lines, and the file's text.
pub(super) fn written_keys(path: &Path) -> Result<(BTreeMap<String, usize>, String), ConfigError> {
    let source = Source::read(path)?;
    Ok((source.document.value_lines(), source.text))
}

/// Returns the tab before a key, below valid text, that makes a text invalid YAML.
fn tab(text: &str) -> Option<TextPosition> {
    if Document::new(text).is_read() {
        return None;
    }
    let mut above = 0;
    for (i, line) in text.split_inclusive('\n').enumerate() {
        let indent = line.chars().take_while(|c| c.is_whitespace());
        if !line.trim().is_empty()
            && let Some(column) = indent.clone().position(|c| c == '\t')
            && Document::new(&text[..above]).is_read()
            && !Document::new(&text[..above + line.len()]).is_read()
        {
            let (line, column) = (i + 1, column + 1);
            return Some(TextPosition { line, column });
        }
        above += line.len();
    }
    None
}

/// Reads the keys of all entries for one fabric after the other.
struct FabricReader<'a, 'o> {
    source: &'a Source,
    /// Name of each entry's fabric.
    kinds: Vec<&'static str>,
    nics: &'a mut [NicConfig],
    out: &'a mut Findings<'o>,
    done: Option<()>,
}

impl EachFabric for FabricReader<'_, '_> {
    fn visit<K: Default + Serialize + DeserializeOwned>(
        &mut self,
        name: &'static str,
        make: fn(K) -> NicFabric,
    ) {
        #[derive(Deserialize)]
        struct Entries<K> {
            nics: Vec<K>,
        }
        if !self.kinds.contains(&name) {
            return;
        }
        let Some(all) = self.source.decode::<Entries<K>>(self.out) else {
            self.done = None;
            return;
        };
        let each = self.nics.iter_mut().zip(&self.kinds).zip(all.nics);
        for ((nic, _), keys) in each.filter(|((_, kind), _)| **kind == name) {
            nic.fabric = make(keys);
        }
    }
}

struct Source {
    text: String,
    origin: String,
    base: PathBuf,
    document: Document,
}

impl Source {
    fn new(text: &str, origin: &str, base: &Path) -> Self {
        Source {
            text: text.to_owned(),
            origin: origin.to_owned(),
            base: base.to_owned(),
            document: Document::new(text),
        }
    }

    fn read(path: &Path) -> Result<Self, ConfigError> {
        let read = |source| ConfigError::Read {
            path: path.to_owned(),
            source,
        };
        let mut bytes = Vec::new();
        File::open(path)
            .and_then(|file| file.take(MAX_FILE_BYTES + 1).read_to_end(&mut bytes))
            .map_err(read)?;
        let not_text = |what: String| ConfigError::NotText {
            path: path.to_owned(),
            what,
        };
        if bytes.len() as u64 > MAX_FILE_BYTES {
            return Err(not_text(format!("longer than {MAX_FILE_BYTES} bytes")));
        }
        let text = String::from_utf8(bytes).map_err(|error| {
            let at = error.utf8_error().valid_up_to();
            not_text(format!("no UTF-8 at byte {at}"))
        })?;
        let base = path.parent().unwrap_or(Path::new(""));
        Ok(Source::new(&text, &path.display().to_string(), base))
    }

    /// Decodes the text, then checks ranges and relations of values. Reports all problems.
    fn parse<C: ConfigFile, K: SectionKeys<C>>(&self) -> Result<(C, K), ConfigError> {
        let mut out = self.findings();
        if !K::MORE {
            let known = [keys_of::<C>(), keys_of::<K>()].concat();
            let known: Vec<&str> = known.iter().map(String::as_str).collect();
            let unknown = self.document.keys("");
            for key in unknown.filter(|key| !known.contains(key)) {
                let what = format!("unknown key `{key}`");
                out.add_key(key, what, keys_here(key, &known));
            }
        }
        let config = self.parse_own::<C>(&mut out);
        let read = config.and_then(|config| {
            let mut keys = self.decode::<K>(&mut out)?;
            keys.resolve(&self.base);
            out.ranges("", keys.validate());
            keys.check(&config, &mut out);
            Some((config, keys))
        });
        out.finish(read)
    }

    fn parse_own<C: ConfigFile>(&self, out: &mut Findings<'_>) -> Option<C> {
        let mut config = self.decode::<C>(out)?;
        check_keys(config.nics().len(), C::SIDE, out);
        self.read_fabrics(config.nics(), out)?;
        config.resolve(&self.base);
        check_values(&mut config, out);
        Some(config)
    }

    /// Reads the keys of each entry of `nics` that belong to the entry's fabric. All keys of the
    /// entry, in any order, determine the fabric.
    fn read_fabrics(&self, nics: &mut [NicConfig], out: &mut Findings<'_>) -> Option<()> {
        let kinds = (0..nics.len()).map(|i| fabric_of(i, &self.document));
        let mut reading = FabricReader {
            source: self,
            kinds: kinds.collect(),
            nics,
            out,
            done: Some(()),
        };
        NicFabric::each(&mut reading);
        reading.done
    }

    /// Decodes the text to a `T`. On failure, adds the problem to `out` and returns `None`.
    fn decode<T: DeserializeOwned>(&self, out: &mut Findings<'_>) -> Option<T> {
        let error = match serde_saphyr::from_str_with_options(&self.text, options()) {
            Ok(read) => return Some(read),
            Err(error) => error,
        };
        if let Some(place) = tab(&self.text) {
            let what = format!("line {} begins with a tab: YAML wants spaces", place.line);
            let help = "replace each tab in front of a key by spaces".to_owned();
            out.at(Some(place), what, Some(help));
            return None;
        }
        let error = error.without_snippet();
        let mut place = error.location().and_then(TextPosition::of);
        if is_about_value(error) {
            place = place.map(|place| self.document.value_at(place));
        }
        let (what, help) = describe(error);
        out.at(place, what, help);
        None
    }

    fn check_files(&self, files: &[(&'static str, Option<&Path>)]) -> Result<(), ConfigError> {
        let mut out = self.findings();
        for (key, file) in files {
            let Some(file) = file else { continue };
            let problem = match std::fs::metadata(file) {
                Ok(found) if found.is_dir() => Some("it is a folder, not a file".to_owned()),
                Ok(_) => None,
                Err(error) => Some(error.to_string()),
            };
            if let Some(problem) = problem {
                let help = if file.components().any(|part| part.as_os_str() == ".deps") {
                    "`cargo xtask setup` makes what lies in .deps"
                } else {
                    "paths are relative to the folder of this configuration"
                };
                out.add(*key, format!("{}: {problem}", file.display()), help);
            }
        }
        out.finish(Some(()))
    }

    fn findings(&self) -> Findings<'_> {
        Findings::new(&self.document, Some(&self.text), &self.origin)
    }
}
