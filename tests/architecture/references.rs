//! All paths and string literals of a module, with the place that each path leads to.
//!
//! Sees the text alone: imports, paths in code, types, patterns and attributes, and the tokens inside macros. A method
//! called on a value names no path, so the type's module counts only where the type is named.

use std::collections::{HashMap, HashSet};

use proc_macro2::{TokenStream, TokenTree};
use syn::spanned::Spanned;
use syn::visit::{self, Visit};
use syn::{Attribute, Block, Expr, Item, Meta, Pat, Stmt};

use crate::tree::{self, Import, ModuleId, Target, Tree};

/// A path that a module mentions.
pub(crate) struct Reference {
    pub(crate) from: ModuleId,
    pub(crate) to: Target,
    pub(crate) line: usize,
    pub(crate) place: Place,
}

/// The place of a path, as far as the graph and the rules need it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Place {
    Code,
    /// A public import of something below the importing module: a front door, not a dependency.
    FrontDoor,
    /// The type or the value of a `static`.
    Static,
    /// A call whose result is dropped at once.
    Dropped,
}

/// A string literal.
pub(crate) struct Text {
    pub(crate) from: ModuleId,
    pub(crate) line: usize,
    pub(crate) text: String,
}

/// All references and literals of a tree.
#[derive(Default)]
pub(crate) struct Mentions {
    pub(crate) references: Vec<Reference>,
    pub(crate) texts: Vec<Text>,
}

impl Mentions {
    /// Reads every module of the tree.
    pub(crate) fn of(tree: &Tree) -> Mentions {
        let mut mentions = Mentions::default();
        for (module, content) in tree.modules.iter().enumerate() {
            let mut reader = Reader::new(tree, module, &mut mentions);
            content.imports.iter().for_each(|import| reader.import(import));
            content.items.iter().for_each(|item| reader.visit_item(item));
        }
        mentions
    }
}

/// The meaning of a name inside a block.
enum Local {
    Item,
    Import(Vec<String>),
}

struct Reader<'a> {
    tree: &'a Tree,
    module: ModuleId,
    mentions: &'a mut Mentions,
    /// The names that the blocks around bring in, the outermost first.
    blocks: Vec<HashMap<String, Local>>,
    /// The names that patterns bind, one set for each function around.
    bound: Vec<HashSet<String>>,
    /// The types of the `impl` blocks around; empty for a trait.
    self_types: Vec<Vec<String>>,
    place: Place,
}

impl<'a> Reader<'a> {
    fn new(tree: &'a Tree, module: ModuleId, mentions: &'a mut Mentions) -> Reader<'a> {
        let (blocks, bound, self_types) = (Vec::new(), Vec::new(), Vec::new());
        Reader { tree, module, mentions, blocks, bound, self_types, place: Place::Code }
    }

    /// Records the targets of a `use`.
    fn import(&mut self, import: &Import) {
        for to in self.tree.resolve(self.module, &import.path) {
            let is_front_door = import.is_public
                && matches!(to, Target::Inside(module, _) if self.tree.is_within(module, self.module));
            let place = if is_front_door { Place::FrontDoor } else { Place::Code };
            self.mentions.references.push(Reference { from: self.module, to, line: import.line, place });
        }
    }

    /// Records a path; its first segment is empty after a leading `::`.
    fn path(&mut self, path: Vec<String>, line: usize) {
        let Some(path) = self.outside_of_blocks(path) else { return };
        for to in self.tree.resolve(self.module, &path) {
            self.mentions.references.push(Reference { from: self.module, to, line, place: self.place });
        }
    }

    /// Replaces `Self` and the names that blocks bring in; `None` for an item of a block.
    fn outside_of_blocks(&self, mut path: Vec<String>) -> Option<Vec<String>> {
        if path[0] == "Self" {
            let owner = self.self_types.last().filter(|owner| !owner.is_empty())?;
            path.splice(0..1, owner.iter().cloned());
        }
        for block in self.blocks.iter().rev() {
            match block.get(&path[0]) {
                Some(Local::Item) => return None,
                Some(Local::Import(import)) => drop(path.splice(0..1, import.iter().cloned())),
                None => {}
            }
        }
        Some(path)
    }

    fn is_bound(&self, name: &str) -> bool {
        self.bound.iter().any(|names| names.contains(name))
    }

    /// Returns whether a path leads anywhere, and is not just a word in a string or among the tokens of a macro.
    fn is_known(&self, path: &[String]) -> bool {
        self.blocks.iter().any(|block| block.contains_key(&path[0]))
            || self.tree.resolve(self.module, path) != [Target::Outside(path.to_vec())]
    }

    /// Records the paths and literals among the tokens of a macro or an attribute.
    fn tokens(&mut self, tokens: TokenStream, with_names_in_strings: bool) {
        let tokens: Vec<TokenTree> = tokens.into_iter().collect();
        let mut at = 0;
        while at < tokens.len() {
            match &tokens[at] {
                TokenTree::Group(group) => self.tokens(group.stream(), with_names_in_strings),
                TokenTree::Literal(literal) => {
                    if let Ok(literal) = syn::parse_str::<syn::LitStr>(&literal.to_string()) {
                        self.string(&literal.value(), tree::line(tokens[at].span()), with_names_in_strings);
                    }
                }
                TokenTree::Ident(_) => {
                    at += self.path_among(&tokens, at);
                    continue;
                }
                TokenTree::Punct(_) => {}
            }
            at += 1;
        }
    }

    /// Records the path that begins at a token, and returns how many tokens it takes.
    fn path_among(&mut self, tokens: &[TokenTree], start: usize) -> usize {
        let is_colons = |at: usize| at > 0 && is_punct(tokens, at - 1, ':') && is_punct(tokens, at, ':');
        let mut path = if start > 1 && is_colons(start - 1) { vec![String::new()] } else { Vec::new() };
        let mut at = start;
        while let Some(TokenTree::Ident(ident)) = tokens.get(at) {
            path.push(ident.to_string());
            at += 1;
            let goes_on = is_colons(at + 1) && matches!(tokens.get(at + 2), Some(TokenTree::Ident(_)));
            if !goes_on {
                break;
            }
            at += 2;
        }
        let is_field = start > 0 && is_punct(tokens, start - 1, '.');
        let is_path = path.len() > 1 || !is_field && !self.is_bound(&path[0]) && self.is_known(&path);
        if is_path {
            self.path(path, tree::line(tokens[start].span()));
        }
        at - start
    }

    fn string(&mut self, text: &str, line: usize, may_be_path: bool) {
        self.mentions.texts.push(Text { from: self.module, line, text: text.to_owned() });
        let path = syn::parse_str::<syn::Path>(text).ok().filter(|_| may_be_path);
        if let Some(path) = path.map(|path| segments(&path)).filter(|path| self.is_known(path)) {
            self.path(path, line);
        }
    }

    /// Visits a function, with the names that its patterns bind.
    fn function(&mut self, signature: &syn::Signature, block: &Block, visit: impl FnOnce(&mut Self)) {
        let mut names = Bound::default();
        signature.inputs.iter().for_each(|input| names.visit_fn_arg(input));
        names.visit_block(block);
        self.bound.push(names.0);
        visit(self);
        self.bound.pop();
    }
}

fn is_punct(tokens: &[TokenTree], at: usize, sign: char) -> bool {
    matches!(tokens.get(at), Some(TokenTree::Punct(punct)) if punct.as_char() == sign)
}

fn segments(path: &syn::Path) -> Vec<String> {
    let start = path.leading_colon.as_ref().map(|_| String::new());
    start.into_iter().chain(path.segments.iter().map(|segment| segment.ident.to_string())).collect()
}

/// The names that patterns bind.
#[derive(Default)]
struct Bound(HashSet<String>);

impl<'ast> Visit<'ast> for Bound {
    fn visit_pat_ident(&mut self, pattern: &'ast syn::PatIdent) {
        let name = pattern.ident.to_string();
        // A name in capitals is a constant or a variant that is compared with.
        if !name.starts_with(char::is_uppercase) {
            self.0.insert(name);
        }
        visit::visit_pat_ident(self, pattern);
    }
}

impl<'ast> Visit<'ast> for Reader<'_> {
    fn visit_item(&mut self, item: &'ast Item) {
        if tree::is_test(tree::attributes(item)) {
            return;
        }
        match item {
            Item::Use(_) => {}
            // A module of a file or of a block is in the tree by itself.
            Item::Mod(_) => {}
            Item::Fn(function) => {
                self.function(&function.sig, &function.block, |reader| {
                    visit::visit_item_fn(reader, function);
                });
            }
            Item::Static(item) => {
                let before = std::mem::replace(&mut self.place, Place::Static);
                visit::visit_item_static(self, item);
                if matches!(item.mutability, syn::StaticMutability::Mut(_)) {
                    self.path(vec![String::new(), "mut".to_owned()], tree::line(item.span()));
                }
                self.place = before;
            }
            Item::Impl(item) => {
                let owner =
                    if let syn::Type::Path(owner) = &*item.self_ty { segments(&owner.path) } else { vec![] };
                self.self_types.push(owner);
                visit::visit_item_impl(self, item);
                self.self_types.pop();
            }
            Item::Trait(item) => {
                self.self_types.push(Vec::new());
                visit::visit_item_trait(self, item);
                self.self_types.pop();
            }
            _ => visit::visit_item(self, item),
        }
    }

    fn visit_impl_item_fn(&mut self, item: &'ast syn::ImplItemFn) {
        if !tree::is_test(&item.attrs) {
            self.function(&item.sig, &item.block, |reader| visit::visit_impl_item_fn(reader, item));
        }
    }

    fn visit_field(&mut self, field: &'ast syn::Field) {
        if !tree::is_test(&field.attrs) {
            visit::visit_field(self, field);
        }
    }

    fn visit_block(&mut self, block: &'ast Block) {
        let mut names = HashMap::new();
        for item in
            block.stmts.iter().filter_map(|stmt| if let Stmt::Item(item) = stmt { Some(item) } else { None })
        {
            if let Item::Use(item) = item {
                for import in tree::imports(item) {
                    self.import(&import);
                    if let Some(alias) = import.alias {
                        names.insert(alias, Local::Import(import.path));
                    }
                }
            } else if let Some(name) = tree::item_name(item) {
                names.insert(name, Local::Item);
            }
        }
        self.blocks.push(names);
        visit::visit_block(self, block);
        self.blocks.pop();
    }

    fn visit_stmt(&mut self, stmt: &'ast Stmt) {
        if let Some(path) = dropped_call(stmt) {
            let before = std::mem::replace(&mut self.place, Place::Dropped);
            self.path(segments(&path.path), tree::line(path.span()));
            self.place = before;
        }
        visit::visit_stmt(self, stmt);
    }

    fn visit_expr_path(&mut self, expr: &'ast syn::ExprPath) {
        let is_variable = expr.path.get_ident().is_some_and(|name| self.is_bound(&name.to_string()));
        if !is_variable {
            visit::visit_expr_path(self, expr);
        }
    }

    fn visit_path(&mut self, path: &'ast syn::Path) {
        self.path(segments(path), tree::line(path.span()));
        visit::visit_path(self, path);
    }

    fn visit_lit_str(&mut self, literal: &'ast syn::LitStr) {
        self.string(&literal.value(), tree::line(literal.span()), false);
    }

    fn visit_macro(&mut self, call: &'ast syn::Macro) {
        self.path(segments(&call.path), tree::line(call.path.span()));
        self.tokens(call.tokens.clone(), false);
    }

    fn visit_attribute(&mut self, attribute: &'ast Attribute) {
        // Serde and schemars take paths in strings.
        let with_names_in_strings = ["serde", "schemars"].iter().any(|name| attribute.path().is_ident(name));
        if let Meta::List(list) = &attribute.meta {
            self.tokens(list.tokens.clone(), with_names_in_strings);
        }
    }

    fn visit_visibility(&mut self, _: &'ast syn::Visibility) {}
}

/// Returns the function whose result a statement drops: `f();`, `let _ = f();`, `drop(f());`.
fn dropped_call(stmt: &Stmt) -> Option<&syn::ExprPath> {
    let expr = match stmt {
        Stmt::Expr(expr, Some(_)) => expr,
        Stmt::Local(local) if matches!(local.pat, Pat::Wild(_)) => &local.init.as_ref()?.expr,
        _ => return None,
    };
    let Expr::Call(call) = expr else { return None };
    let Expr::Path(called) = &*call.func else { return None };
    if called.path.is_ident("drop")
        && let Some(Expr::Call(inner)) = call.args.first()
    {
        let Expr::Path(called) = &*inner.func else { return None };
        return Some(called);
    }
    Some(called)
}
