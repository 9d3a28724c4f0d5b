// SPDX-License-Identifier: MIT
// Fails if the site's search does not find what cmake/docs_search_test.txt says, if a note comes before another page, or if a
// synonym leads to words that no title has: node docs_search_test.js FOLDER, where the site is.
'use strict';
const fs = require('fs'), path = require('path'), vm = require('vm');

const folder = process.argv[2], failures = [];
const site = vm.createContext({});
for (const file of [path.join(folder, 'search', 'index.js'), path.join(__dirname, 'docs_search.js')])
  vm.runInContext(fs.readFileSync(file, 'utf8'), site, {filename: file});
const search = vm.runInContext('query => giwa_search(query, giwa_index, giwa_synonyms)', site);

const index = vm.runInContext('giwa_index', site), root = path.dirname(__dirname);
const addresses = new Set(index.flatMap(([address]) => [address, address.split('#')[0]])), titles = new Set(index.map(([, title]) => title));
// The address of a page or an example by its file, of a heading by file#heading; a name of the reference is itself.
function address_of(name) {
  const [, file, heading] = /^([^#]+\.\w+)(?:#(.+))?$/u.exec(name) ?? [];
  if (!file) return titles.has(name) ? name : null;
  const label = file.replace(/\.md$/, '').replace(/[^\p{L}\p{N}_]/gu, '_').toLowerCase(), page = file === 'README.md' ? 'index.html' : `${label}.html`;
  const address = heading ? `${page}#${label}_${heading.replace(/-/g, '_')}` : page;
  return fs.existsSync(path.join(root, file)) && addresses.has(address) ? address : null;
}

let count = 0;
for (const line of fs.readFileSync(path.join(__dirname, 'docs_search_test.txt'), 'utf8').split('\n')) {
  if (!line.trim() || line.startsWith('#')) continue;
  const [queries, expected] = line.split(/ = /).map(side => side.split(' | ').map(part => part.trim()));
  const wanted = expected.map(address_of);
  expected.forEach((name, i) => wanted[i] ?? failures.push(`${name}: the site has no such page, heading or name`));
  for (const query of queries) {
    ++count;
    const first = search(query).slice(0, 3);
    if (!first.some(([address, title]) => wanted.includes(address) || wanted.includes(address.split('#')[0]) || wanted.includes(title)))
      failures.push(`${query}: not in the first three: ${expected.join(' or ')}; found: ${first.map(([address]) => address).join(', ') || 'nothing'}`);
    const is_note = first.map(([address]) => address.startsWith('docs_notes_'));
    if (is_note.includes(true) && is_note.lastIndexOf(false) > is_note.indexOf(true)) failures.push(`${query}: a note comes before another page`);
  }
}
const plain = text => text.normalize('NFC').toLowerCase().replace(/(?<=[\p{L}\p{N}])-(?=[\p{L}\p{N}])/gu, ' ').replace(/\s+/g, ' ');
const all_titles = index.flatMap(([, title, , , , others]) => [title, ...others]).map(plain);
for (const [term, ...same] of vm.runInContext('giwa_synonyms', site))
  for (const words of same) if (!all_titles.some(title => words.split(' ').every(word => title.includes(word)))) failures.push(`docs_synonyms.txt: ${term} = ${words}: no title has these words`);
console.log(`${failures.map(failure => failure + '\n').join('')}search: ${count} queries, ${failures.length} failures`);
process.exitCode = failures.length > 0 || count === 0 ? 1 : 0;
