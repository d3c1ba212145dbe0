//! The modules of a crate, read from its files, and the names that each module knows.
//!
//! Items under `#[cfg(test)]` are left out: the tree is the one that is shipped.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::fs;
use std::path::Path;

use proc_macro2::Span;
use syn::spanned::Spanned;
use syn::{Attribute, Ident, Item, Meta, UseTree, Visibility};

/// Rust files by their path from the root of the project, such as `src/limiter/mod.rs`.
pub(crate) type Sources = BTreeMap<String, String>;

/// A module is named by its place in [`Tree::modules`].
pub(crate) type ModuleId = usize;

/// The crate root.
pub(crate) const ROOT: ModuleId = 0;

/// The modules of the library and of its binary.
pub(crate) struct Tree {
    pub(crate) modules: Vec<Module>,
}

/// One module: a file or an inline block.
pub(crate) struct Module {
    /// The path from the crate root, such as `limiter::queue`; empty for the root.
    pub(crate) name: String,
    pub(crate) file: String,
    pub(crate) parent: Option<ModuleId>,
    pub(crate) items: Vec<Item>,
    pub(crate) imports: Vec<Import>,
    /// The meanings of each name; a module and a function may share one.
    pub(crate) names: HashMap<String, Vec<Name>>,
    pub(crate) globs: Vec<Vec<String>>,
    /// The variants of each enum, for paths that go through a glob import.
    pub(crate) variants: HashMap<String, HashSet<String>>,
}

/// The meaning of a name in a module.
#[derive(Clone)]
pub(crate) enum Name {
    Module(ModuleId),
    Item,
    Import(Vec<String>),
}

/// One name that a `use` brings in; `path` begins with an empty segment after a leading `::`.
#[derive(Clone)]
pub(crate) struct Import {
    pub(crate) path: Vec<String>,
    /// The name it has here; none for a glob and for `_`.
    pub(crate) alias: Option<String>,
    pub(crate) is_glob: bool,
    pub(crate) is_public: bool,
    pub(crate) line: usize,
}

/// The end of a path.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Target {
    /// An item of this crate: the module that defines it, and the path inside that module. An empty path is the module
    /// itself.
    Inside(ModuleId, Vec<String>),
    /// Something of another crate, of the language, or of no known place.
    Outside(Vec<String>),
}

/// Reads all Rust files below `src/`.
pub(crate) fn read_sources(root: &Path) -> Sources {
    let mut sources = Sources::new();
    read_directory(root, &root.join("src"), &mut sources);
    sources
}

fn read_directory(root: &Path, directory: &Path, sources: &mut Sources) {
    for entry in fs::read_dir(directory).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            read_directory(root, &path, sources);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            let name = path.strip_prefix(root).unwrap().to_string_lossy().into_owned();
            sources.insert(name, fs::read_to_string(&path).unwrap());
        }
    }
}

impl Tree {
    /// Follows the `mod` items from `src/lib.rs`, and from `src/main.rs` where there is one.
    pub(crate) fn new(sources: &Sources) -> Tree {
        let mut tree = Tree { modules: Vec::new() };
        tree.add_file(sources, "", "src/lib.rs", "src", None);
        if sources.contains_key("src/main.rs") {
            let main = tree.add_file(sources, "main", "src/main.rs", "src", Some(ROOT));
            tree.modules[main].names.insert("weir".to_owned(), vec![Name::Module(ROOT)]);
        }
        tree
    }

    fn add_file(
        &mut self,
        sources: &Sources,
        name: &str,
        file: &str,
        directory: &str,
        parent: Option<ModuleId>,
    ) -> ModuleId {
        let text = sources.get(file).unwrap_or_else(|| panic!("{file} is missing"));
        let parsed = syn::parse_file(text).unwrap_or_else(|error| panic!("{file}: {error}"));
        self.add_module(sources, (name, file, directory), parent, parsed.items)
    }

    fn add_module(
        &mut self,
        sources: &Sources,
        (name, file, directory): (&str, &str, &str),
        parent: Option<ModuleId>,
        items: Vec<Item>,
    ) -> ModuleId {
        let id = self.modules.len();
        let mut module = Module::new(name, file, parent);
        module.items = items.into_iter().filter(|item| !is_test(attributes(item))).collect();
        module.collect_names();
        let children: Vec<syn::ItemMod> = module.items.iter().filter_map(child).collect();
        self.modules.push(module);
        for child in children {
            self.add_child(sources, (name, file, directory), id, child);
        }
        id
    }

    fn add_child(
        &mut self,
        sources: &Sources,
        (name, file, directory): (&str, &str, &str),
        parent: ModuleId,
        child: syn::ItemMod,
    ) {
        let ident = child.ident.to_string();
        let name = if name.is_empty() { ident.clone() } else { format!("{name}::{ident}") };
        let below = format!("{directory}/{ident}");
        let id = match child.content {
            Some((_, items)) => self.add_module(sources, (&name, file, &below), Some(parent), items),
            None => {
                let flat = format!("{below}.rs");
                let file = if sources.contains_key(&flat) { flat } else { format!("{below}/mod.rs") };
                self.add_file(sources, &name, &file, &below, Some(parent))
            }
        };
        self.modules[parent].names.entry(ident).or_default().push(Name::Module(id));
    }

    /// Resolves a path that is written in `module`; returns one target for each meaning of its names.
    pub(crate) fn resolve(&self, module: ModuleId, path: &[String]) -> Vec<Target> {
        self.resolve_guarded(module, path, &mut Vec::new())
    }

    fn resolve_guarded(
        &self,
        module: ModuleId,
        path: &[String],
        seen: &mut Vec<(ModuleId, String)>,
    ) -> Vec<Target> {
        match path[0].as_str() {
            "" => vec![Target::Outside(path[1..].to_vec())],
            "crate" => self.walk(ROOT, &path[1..], seen),
            "self" | "super" => self.walk(module, path, seen),
            name => match self.look_up(module, name, seen) {
                found if found.is_empty() => vec![Target::Outside(path.to_vec())],
                found => self.go_on(found, &path[1..], seen),
            },
        }
    }

    /// Follows the rest of a path from a module that it has reached.
    fn walk(&self, module: ModuleId, rest: &[String], seen: &mut Vec<(ModuleId, String)>) -> Vec<Target> {
        let Some(name) = rest.first() else { return vec![Target::Inside(module, Vec::new())] };
        match name.as_str() {
            "self" => self.walk(module, &rest[1..], seen),
            "super" => self.walk(self.modules[module].parent.unwrap_or(ROOT), &rest[1..], seen),
            name => match self.look_up(module, name, seen) {
                found if found.is_empty() => vec![Target::Inside(module, rest.to_vec())],
                found => self.go_on(found, &rest[1..], seen),
            },
        }
    }

    /// Follows the rest of a path from every target of its first segments.
    fn go_on(&self, found: Vec<Target>, rest: &[String], seen: &mut Vec<(ModuleId, String)>) -> Vec<Target> {
        let is_module = |target: &Target| matches!(target, Target::Inside(_, path) if path.is_empty());
        let only_modules = !rest.is_empty() && found.iter().any(is_module);
        let leads = found.into_iter().filter(|target| !only_modules || is_module(target));
        let mut targets: Vec<Target> = Vec::new();
        for target in leads {
            let reached = match target {
                Target::Inside(module, path) if path.is_empty() => self.walk(module, rest, seen),
                Target::Inside(module, path) => vec![Target::Inside(module, [&path, rest].concat())],
                Target::Outside(path) => vec![Target::Outside([&path, rest].concat())],
            };
            targets.extend(reached);
        }
        targets.dedup();
        targets
    }

    /// Returns the targets of a name in a module: its items, its imports, then its glob imports.
    fn look_up(&self, module: ModuleId, name: &str, seen: &mut Vec<(ModuleId, String)>) -> Vec<Target> {
        let step = (module, name.to_owned());
        if seen.contains(&step) {
            return Vec::new();
        }
        seen.push(step);
        let mut found = self.look_up_named(module, name, seen);
        if found.is_empty() {
            found = self.look_up_globs(module, name, seen);
        }
        seen.pop();
        found
    }

    fn look_up_named(&self, id: ModuleId, name: &str, seen: &mut Vec<(ModuleId, String)>) -> Vec<Target> {
        let meanings = self.modules[id].names.get(name).into_iter().flatten();
        let targets = meanings.flat_map(|meaning| match meaning {
            Name::Module(child) => vec![Target::Inside(*child, Vec::new())],
            Name::Item => vec![Target::Inside(id, vec![name.to_owned()])],
            Name::Import(path) => self.resolve_guarded(id, path, seen),
        });
        targets.collect()
    }

    fn look_up_globs(&self, id: ModuleId, name: &str, seen: &mut Vec<(ModuleId, String)>) -> Vec<Target> {
        let mut found = Vec::new();
        for glob in &self.modules[id].globs {
            for target in self.resolve_guarded(id, glob, seen) {
                match target {
                    Target::Inside(module, path) if path.is_empty() => {
                        found.extend(self.look_up(module, name, seen));
                    }
                    Target::Inside(module, path) if self.has_variant(module, &path, name) => {
                        found.push(Target::Inside(module, vec![path[0].clone(), name.to_owned()]));
                    }
                    Target::Inside(..) | Target::Outside(_) => {}
                }
            }
        }
        found
    }

    fn has_variant(&self, module: ModuleId, path: &[String], variant: &str) -> bool {
        let variants = &self.modules[module].variants;
        path.len() == 1 && variants.get(&path[0]).is_some_and(|variants| variants.contains(variant))
    }

    /// Returns the module and all that contain it, the crate root first.
    pub(crate) fn ancestry(&self, module: ModuleId) -> Vec<ModuleId> {
        let mut line: Vec<_> = std::iter::successors(Some(module), |id| self.modules[*id].parent).collect();
        line.reverse();
        line
    }

    /// Returns whether the first module is the second or lies inside it.
    pub(crate) fn is_within(&self, module: ModuleId, room: ModuleId) -> bool {
        self.ancestry(module).contains(&room)
    }
}

impl Module {
    fn new(name: &str, file: &str, parent: Option<ModuleId>) -> Module {
        Module {
            name: name.to_owned(),
            file: file.to_owned(),
            parent,
            items: Vec::new(),
            imports: Vec::new(),
            names: HashMap::new(),
            globs: Vec::new(),
            variants: HashMap::new(),
        }
    }

    fn collect_names(&mut self) {
        for item in &self.items {
            if let Item::Use(item) = item {
                let imports = imports(item);
                for import in &imports {
                    if import.is_glob {
                        self.globs.push(import.path.clone());
                    } else if let Some(alias) = import.alias.clone() {
                        self.names.entry(alias).or_default().push(Name::Import(import.path.clone()));
                    }
                }
                self.imports.extend(imports);
            } else if let Some(name) = item_name(item) {
                self.names.entry(name).or_default().push(Name::Item);
            }
            if let Item::Enum(item) = item {
                let variants = item.variants.iter().map(|variant| variant.ident.to_string()).collect();
                self.variants.insert(item.ident.to_string(), variants);
            }
        }
    }

    /// Returns the last part of the name.
    pub(crate) fn short_name(&self) -> &str {
        self.name.rsplit("::").next().unwrap_or_default()
    }
}

fn child(item: &Item) -> Option<syn::ItemMod> {
    if let Item::Mod(item) = item { Some(item.clone()) } else { None }
}

/// Returns the name that an item has in its module; none for modules, which are added with their files.
pub(crate) fn item_name(item: &Item) -> Option<String> {
    let ident = match item {
        Item::Const(item) => &item.ident,
        Item::Enum(item) => &item.ident,
        Item::Fn(item) => &item.sig.ident,
        Item::Macro(item) => item.ident.as_ref()?,
        Item::Static(item) => &item.ident,
        Item::Struct(item) => &item.ident,
        Item::Trait(item) => &item.ident,
        Item::Type(item) => &item.ident,
        Item::Union(item) => &item.ident,
        _ => return None,
    };
    Some(ident.to_string())
}

/// Returns the names that one `use` brings in.
pub(crate) fn imports(item: &syn::ItemUse) -> Vec<Import> {
    let start = if item.leading_colon.is_some() { vec![String::new()] } else { Vec::new() };
    let mut imports = Vec::new();
    spread(&item.tree, &start, !matches!(item.vis, Visibility::Inherited), &mut imports);
    imports
}

fn spread(tree: &UseTree, path: &[String], is_public: bool, imports: &mut Vec<Import>) {
    let with = |ident: &Ident| [path, &[ident.to_string()]].concat();
    match tree {
        UseTree::Path(part) => spread(&part.tree, &with(&part.ident), is_public, imports),
        UseTree::Name(last) => imports.push(named(with(&last.ident), &last.ident, is_public)),
        UseTree::Rename(last) => imports.push(named(with(&last.ident), &last.rename, is_public)),
        UseTree::Glob(glob) => {
            let line = line(glob.star_token.span());
            imports.push(Import { path: path.to_vec(), alias: None, is_glob: true, is_public, line });
        }
        UseTree::Group(group) => {
            group.items.iter().for_each(|tree| spread(tree, path, is_public, imports));
        }
    }
}

/// Returns the import of one name; `{self}` stands for what is before the braces.
fn named(mut path: Vec<String>, alias: &Ident, is_public: bool) -> Import {
    let is_self = path.len() > 1 && path.last().is_some_and(|last| last == "self");
    path.truncate(if is_self { path.len() - 1 } else { path.len() });
    let name = if alias == "self" { path.last().cloned() } else { Some(alias.to_string()) };
    let alias_or_none = name.filter(|name| name != "_");
    Import { path, alias: alias_or_none, is_glob: false, is_public, line: line(alias.span()) }
}

/// Returns the number of the line where something begins.
pub(crate) fn line(span: Span) -> usize {
    span.start().line
}

/// Returns whether an item is compiled for tests alone.
pub(crate) fn is_test(attributes: &[Attribute]) -> bool {
    attributes.iter().any(|attribute| match &attribute.meta {
        Meta::Path(path) => path.is_ident("test"),
        Meta::List(list) if list.path.is_ident("cfg") => {
            let condition = list.tokens.to_string();
            condition.split(|c: char| !c.is_alphanumeric()).any(|word| word == "test")
                && !condition.contains("not")
        }
        Meta::List(_) | Meta::NameValue(_) => false,
    })
}

/// Returns the attributes of an item.
pub(crate) fn attributes(item: &Item) -> &[Attribute] {
    match item {
        Item::Const(item) => &item.attrs,
        Item::Enum(item) => &item.attrs,
        Item::ExternCrate(item) => &item.attrs,
        Item::Fn(item) => &item.attrs,
        Item::Impl(item) => &item.attrs,
        Item::Macro(item) => &item.attrs,
        Item::Mod(item) => &item.attrs,
        Item::Static(item) => &item.attrs,
        Item::Struct(item) => &item.attrs,
        Item::Trait(item) => &item.attrs,
        Item::Type(item) => &item.attrs,
        Item::Union(item) => &item.attrs,
        Item::Use(item) => &item.attrs,
        _ => &[],
    }
}
