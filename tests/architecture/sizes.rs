//! Limits on the size of files, functions and structs.

use syn::spanned::Spanned;
use syn::visit::{self, Visit};
use syn::{Block, Fields, Item, Type};

use crate::Finding;
use crate::tree::{self, Sources};

const FILE_LINES_MAX: usize = 500;
const FUNCTION_LINES_MAX: usize = 70;
const FUNCTION_LINES_MEDIAN_MAX: usize = 10;
const FIELDS_MAX: usize = 12;

/// The files of the cores, of which each function has few branches and each struct few fields.
const CORES: [&str; 6] = [
    "src/limiter/queue/worker/core/",
    "src/limiter/queue/worker/line/",
    "src/limiter/recovery/copies.rs",
    "src/limiter/recovery/ledger.rs",
    "src/limiter/recovery/link.rs",
    "src/limiter/recovery/members.rs",
];
const CORE_BRANCHES_MAX: usize = 8;
const CORE_FIELDS_MAX: usize = 10;

/// The exceptions to the limits, each with its reason; a struct is named as `Worker in src/limiter/queue/worker/run.rs`.
pub(crate) struct Exceptions<'a> {
    /// Files that are tables of data.
    pub(crate) tables: &'a [(&'a str, &'a str)],
    /// Structs that are plain data, and the worker.
    pub(crate) wide_structs: &'a [(&'a str, &'a str)],
    /// Structs with `bool`s of which each combination has a meaning of its own.
    pub(crate) independent_bools: &'a [(&'a str, &'a str)],
    /// Functions of a core with many branches, named as `BookedCore::on in src/limiter/queue/worker/core/mod.rs`.
    pub(crate) branching: &'a [(&'a str, &'a str)],
}

/// A function with a body; `lines` lie between its braces.
struct Function {
    name: String,
    line: usize,
    lines: usize,
    /// Each `if`, loop and `let … else`, and each arm of a `match` but the first.
    branches: usize,
    is_test: bool,
}

struct Struct {
    name: String,
    line: usize,
    fields: usize,
    bools: Vec<String>,
}

/// Returns everything that is too large.
pub(crate) fn findings(sources: &Sources, exceptions: &Exceptions<'_>) -> Vec<Finding> {
    let mut found = Vec::new();
    let mut shipped = Vec::new();
    for (path, text) in sources {
        let lines = text.lines().count();
        if lines > FILE_LINES_MAX && !is_named(exceptions.tables, path) {
            found.push(Finding::new(format!("long file: {path}"), format!("{lines} lines")));
        }
        let measured = Measured::of(path, text);
        found.extend(measured.functions.iter().filter_map(|function| too_long(path, function)));
        found.extend(measured.functions.iter().filter_map(|it| too_branching(path, it, exceptions)));
        found.extend(measured.structs.iter().flat_map(|data| too_wide(path, data, exceptions)));
        shipped.extend(measured.functions.iter().filter(|it| !it.is_test).map(|it| it.lines));
    }
    shipped.sort_unstable();
    let median = shipped.get(shipped.len() / 2).copied().unwrap_or_default();
    println!("{} functions, median {median} lines", shipped.len());
    if median > FUNCTION_LINES_MEDIAN_MAX {
        found.push(Finding::new("the median function".to_owned(), format!("{median} lines")));
    }
    found.extend(unused(sources, exceptions));
    found
}

fn is_named(list: &[(&str, &str)], name: &str) -> bool {
    list.iter().any(|(named, _)| *named == name)
}

fn too_long(path: &str, function: &Function) -> Option<Finding> {
    let Function { name, line, lines, .. } = function;
    let detail = format!("{path}:{line}: {lines} lines");
    (*lines > FUNCTION_LINES_MAX).then(|| Finding::new(format!("long function: {name} in {path}"), detail))
}

fn is_core(path: &str) -> bool {
    CORES.iter().any(|core| path.starts_with(core))
}

fn too_branching(path: &str, function: &Function, exceptions: &Exceptions<'_>) -> Option<Finding> {
    let Function { name, line, branches, is_test, .. } = function;
    let name = format!("{name} in {path}");
    let is_fine = *branches <= CORE_BRANCHES_MAX || *is_test || is_named(exceptions.branching, &name);
    let detail = format!("{path}:{line}: {branches} branches");
    (is_core(path) && !is_fine).then(|| Finding::new(format!("branching function: {name}"), detail))
}

fn too_wide(path: &str, data: &Struct, exceptions: &Exceptions<'_>) -> Vec<Finding> {
    let Struct { name, line, fields, bools } = data;
    let name = &format!("{name} in {path}");
    let mut found = Vec::new();
    let fields_max = if is_core(path) { CORE_FIELDS_MAX } else { FIELDS_MAX };
    if *fields > fields_max && !is_named(exceptions.wide_structs, name) {
        let detail = format!("{path}:{line}: {fields} fields");
        found.push(Finding::new(format!("wide struct: {name}"), detail));
    }
    if bools.len() > 1 && !is_named(exceptions.independent_bools, name) {
        let detail = format!("{path}:{line}: {}", bools.join(", "));
        found.push(Finding::new(format!("bools: {name}"), detail));
    }
    found
}

/// Returns the exceptions that are no longer needed.
fn unused(sources: &Sources, exceptions: &Exceptions<'_>) -> Vec<Finding> {
    let structs: Vec<(String, Struct)> = sources
        .iter()
        .flat_map(|(path, text)| Measured::of(path, text).structs.into_iter().map(move |data| (path, data)))
        .map(|(path, data)| (format!("{} in {path}", data.name), data))
        .collect();
    let is_wide = |name: &str| structs.iter().any(|(it, data)| it == name && data.fields > FIELDS_MAX);
    let has_bools = |name: &str| structs.iter().any(|(it, data)| it == name && data.bools.len() > 1);
    let is_long = |name: &str| sources.get(name).is_some_and(|text| text.lines().count() > FILE_LINES_MAX);
    let functions: Vec<(String, usize)> = sources
        .iter()
        .flat_map(|(path, text)| Measured::of(path, text).functions.into_iter().map(move |it| (path, it)))
        .map(|(path, it)| (format!("{} in {path}", it.name), it.branches))
        .collect();
    let is_branching =
        |name: &str| functions.iter().any(|(it, branches)| it == name && *branches > CORE_BRANCHES_MAX);
    let stale = |list: &[(&str, &str)], is_needed: &dyn Fn(&str) -> bool| -> Vec<Finding> {
        let names = list.iter().map(|(name, _)| *name).filter(|name| !is_needed(name));
        names.map(|name| Finding::new(format!("needless exception: {name}"), String::new())).collect()
    };
    [
        stale(exceptions.tables, &is_long),
        stale(exceptions.wide_structs, &is_wide),
        stale(exceptions.independent_bools, &has_bools),
        stale(exceptions.branching, &is_branching),
    ]
    .concat()
}

/// The functions and structs of a file.
#[derive(Default)]
struct Measured {
    functions: Vec<Function>,
    structs: Vec<Struct>,
    owners: Vec<String>,
    is_test: bool,
}

impl Measured {
    fn of(path: &str, text: &str) -> Measured {
        let is_test = path.contains("/tests/") || path.ends_with("/tests.rs");
        let mut measured = Measured { is_test, ..Measured::default() };
        let file = syn::parse_file(text).unwrap_or_else(|error| panic!("{path}: {error}"));
        measured.visit_file(&file);
        measured
    }

    fn function(&mut self, signature: &syn::Signature, block: &Block) {
        let braces = block.brace_token.span;
        let (start, end) = (braces.open().start().line, braces.close().end().line);
        let between = (end - start).saturating_sub(1);
        let lines = if block.stmts.is_empty() { 0 } else { between.max(1) };
        let owner = self.owners.last().map(|owner| format!("{owner}::")).unwrap_or_default();
        let name = format!("{owner}{}", signature.ident);
        let line = tree::line(signature.span());
        let mut branches = Branches(0);
        branches.visit_block(block);
        self.functions.push(Function { name, line, lines, branches: branches.0, is_test: self.is_test });
    }
}

/// Counts the branches of a function.
struct Branches(usize);

impl<'ast> Visit<'ast> for Branches {
    fn visit_expr(&mut self, expression: &'ast syn::Expr) {
        self.0 += match expression {
            syn::Expr::If(_) | syn::Expr::While(_) | syn::Expr::ForLoop(_) | syn::Expr::Loop(_) => 1,
            syn::Expr::Match(it) => it.arms.len().saturating_sub(1),
            _ => 0,
        };
        visit::visit_expr(self, expression);
    }

    fn visit_local(&mut self, local: &'ast syn::Local) {
        self.0 += usize::from(local.init.as_ref().is_some_and(|init| init.diverge.is_some()));
        visit::visit_local(self, local);
    }
}

impl<'ast> Visit<'ast> for Measured {
    fn visit_item(&mut self, item: &'ast Item) {
        let before = self.is_test;
        self.is_test |= tree::is_test(tree::attributes(item));
        visit::visit_item(self, item);
        self.is_test = before;
    }

    fn visit_item_impl(&mut self, item: &'ast syn::ItemImpl) {
        let owner = if let Type::Path(owner) = &*item.self_ty { owner.path.segments.last() } else { None };
        self.owners.push(owner.map(|segment| segment.ident.to_string()).unwrap_or_default());
        visit::visit_item_impl(self, item);
        self.owners.pop();
    }

    fn visit_item_trait(&mut self, item: &'ast syn::ItemTrait) {
        self.owners.push(item.ident.to_string());
        visit::visit_item_trait(self, item);
        self.owners.pop();
    }

    fn visit_item_fn(&mut self, item: &'ast syn::ItemFn) {
        self.function(&item.sig, &item.block);
        visit::visit_item_fn(self, item);
    }

    fn visit_impl_item_fn(&mut self, item: &'ast syn::ImplItemFn) {
        let before = self.is_test;
        self.is_test |= tree::is_test(&item.attrs);
        self.function(&item.sig, &item.block);
        visit::visit_impl_item_fn(self, item);
        self.is_test = before;
    }

    fn visit_trait_item_fn(&mut self, item: &'ast syn::TraitItemFn) {
        if let Some(block) = &item.default {
            self.function(&item.sig, block);
        }
        visit::visit_trait_item_fn(self, item);
    }

    fn visit_item_struct(&mut self, item: &'ast syn::ItemStruct) {
        if let Fields::Named(fields) = &item.fields
            && !self.is_test
        {
            let bools = fields.named.iter().filter(|field| is_bool(&field.ty));
            let bools = bools.filter_map(|field| Some(field.ident.as_ref()?.to_string())).collect();
            let line = tree::line(item.ident.span());
            self.structs.push(Struct {
                name: item.ident.to_string(),
                line,
                fields: fields.named.len(),
                bools,
            });
        }
    }
}

fn is_bool(of: &Type) -> bool {
    matches!(of, Type::Path(path) if path.path.is_ident("bool"))
}
