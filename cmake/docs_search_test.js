// SPDX-License-Identifier: MIT
// Fails if the site's search does not find what cmake/docs_search_test.txt says: node docs_search_test.js FOLDER, where the site is.
'use strict';
const fs = require('fs'), path = require('path'), vm = require('vm');

const folder = process.argv[2], failures = [];
const site = vm.createContext({});
for (const file of [path.join(folder, 'search', 'index.js'), path.join(__dirname, 'docs_search.js')])
  vm.runInContext(fs.readFileSync(file, 'utf8'), site, {filename: file});
const search = vm.runInContext('query => giwa_search(query, giwa_index, giwa_synonyms)', site);

let count = 0;
for (const line of fs.readFileSync(path.join(__dirname, 'docs_search_test.txt'), 'utf8').split('\n')) {
  if (!line.trim() || line.startsWith('#')) continue;
  const [queries, expected] = line.split(/ = /).map(side => side.split(' | ').map(part => part.trim()));
  // A page or an example by its file, a name of the reference by itself.
  const wanted = expected.map(name => /\.\w+$/.test(name) ? name.replace(/\.md$/, '').replace(/[^\p{L}\p{N}_]/gu, '_').toLowerCase() + '.html' : name);
  for (const query of queries) {
    ++count;
    const first = search(query).slice(0, 3);
    if (!first.some(([address, title]) => wanted.includes(address.split('#')[0]) || wanted.includes(title)))
      failures.push(`${query}: not in the first three: ${expected.join(' or ')}; found: ${first.map(([address]) => address).join(', ') || 'nothing'}`);
  }
}
console.log(`${failures.map(failure => failure + '\n').join('')}search: ${count} queries, ${failures.length} without their page`);
process.exitCode = failures.length > 0 || count === 0 ? 1 : 0;
