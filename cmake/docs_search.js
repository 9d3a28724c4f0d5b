// SPDX-License-Identifier: MIT
// The site's search: finds the words of a query in the pages, their headings and the names of the reference. Also opens a page's
// contents.
//
// cmake/search_index.py appends this file to Doxygen's search.js, whose search knows only how names and titles begin, and writes
// search/index.js: giwa_index, a list of [address, title, where it is, text, kind, other titles, late], and giwa_synonyms, a list
// of [term, words that mean the same...]. cmake/docs_search_test.js runs giwa_search() without a browser.
'use strict';

// The entries for a query, best first: those whose title is or contains the query or its synonyms, then those that contain its words,
// or synonyms of parts of it, the more of them in one title or near each other the better. If there is none, those with most words.
function giwa_search(query, index, synonyms) {
  // Hyphens separate words. A plural finds the singular and the other way round; Korean words have endings.
  const plain = text => text.normalize('NFC').toLowerCase().replace(/(?<=[\p{L}\p{N}])-(?=[\p{L}\p{N}])/gu, ' ').replace(/\s+/g, ' ').trim();
  const pattern = words => {
    const stem = words.replace(/(?<=[a-z]{3})s$/, '').replace(/[.*+?^${}()|[\]\\\/]/g, '\\$&');
    const from = /^[\p{L}\p{N}]/u.test(words) ? '(?<![\\p{L}\\p{N}])' : '';
    const whole = /[\p{L}\p{N}]$/u.test(words) && !/\p{Script=Hangul}$/u.test(words);
    return {whole: new RegExp(from + stem + (whole ? '(?:e?s)?(?![\\p{L}\\p{N}])' : ''), 'gu'), start: new RegExp(from + stem, 'u'),
            inside: words.length > 3 ? stem : null};
  };
  // How well a text has a word or phrase: 3 as whole words, 2 at the start of a word, 1 inside a longer word.
  const quality = ({whole, start, inside}, text) =>
    text.search(whole) >= 0 ? 3 : start.test(text) ? 2 : inside !== null && text.includes(inside) ? 1 : 0;

  const filler = /^(a|an|the|how|what|is|are|do|does|can|i|it|to|in|on|of|for|with|and|giwa)$/;
  const without_filler = words => {
    const telling = words.split(' ').filter(word => !filler.test(word));
    return telling.length > 0 ? telling.join(' ') : words;
  };
  const asked = without_filler(plain(query)), padded = ` ${asked} `;
  if (!asked) return [];
  const alternatives = [asked], same_as = new Map();
  for (const [term, ...same] of synonyms) {
    const telling = without_filler(term);
    same_as.set(telling, [...(same_as.get(telling) ?? []), ...same]);
    if (padded.includes(` ${telling} `)) alternatives.push(...same.map(words => padded.replace(` ${telling} `, ` ${words} `).trim()));
  }
  // The parts of the query: the longest terms that have synonyms, and the words between. [[phrase, its words' patterns, value]...] of each.
  const parts = [];
  for (let words = asked.split(' '); words.length > 0;) {
    let length = words.length;
    while (length > 1 && !same_as.has(words.slice(0, length).join(' '))) --length;
    const term = words.splice(0, length).join(' ');
    parts.push([[term, 1], ...(same_as.get(term) ?? []).map(same => [same, 0.8])].map(
      ([phrase, value]) => [pattern(phrase), without_filler(phrase).split(' ').map(pattern), value]));
  }

  // Titles count more than text, whole words more than parts, pages more than headings, headings more than examples and names.
  const of_kind = {page: 40, heading: 10, example: 5, name: 4, member: -25};
  const demoted = (value, phrase, {titles, kind, late}) => late && !(kind === 'page' && titles.includes(phrase)) ? value / 1000 : value;
  const points = (phrase, together, singles, entry) => {
    const {titles, where, text, kind, all} = entry;
    const least = Math.min(...singles.map(single => quality(single, all)));
    let best = 0;
    if (least > 0) {
      for (const title of titles) {
        const in_title = Math.min(...singles.map(single => quality(single, title)));
        const as_phrase = quality(together, title);
        const value = title === phrase ? 100 : as_phrase === 3 ? 80 : in_title === 3 ? 70 : as_phrase === 2 ? 60 : in_title > 0 ? 48 + in_title : 0;
        if (value > 0) best = Math.max(best, value + of_kind[kind] + 5 * Math.min(1, phrase.length / title.length));
      }
      const often = Math.min(9, (text.match(together.whole) ?? []).length);
      const beside = Math.min(...singles.map(single => quality(single, titles.join('\n') + '\n' + where)));
      best = Math.max(best, (beside === 3 ? 45 : often > 0 ? 30 + often : parts.length > 1 ? 1 : 10 * least - 5) + of_kind[kind] / 4);
    }
    return demoted(best, phrase, entry);
  };

  // How well an entry has each part of the query, 0 to 1: in a title, in its place or a title, anywhere. Rare parts weigh more.
  const held = part => ({titles, where, all}) => {
    const in_text = (text, [together, singles, value]) => value / 3 * Math.max(quality(together, text),
      singles.length > 1 ? 0.9 * Math.min(...singles.map(single => quality(single, text))) : 0);
    const its = part.map(phrase => [phrase, in_text(all, phrase)]).filter(([, found]) => found > 0);
    const in_any = texts => Math.max(0, ...its.flatMap(([phrase]) => texts.map(text => in_text(text, phrase))));
    const title = its.length > 0 ? in_any(titles) : 0;
    return {title, place: its.length > 0 ? Math.max(title, in_any([where])) : 0, all: Math.max(0, ...its.map(([, found]) => found))};
  };
  // The words of a text from the first to the last part, where these are closest.
  const span = text => {
    const found = parts.flatMap((part, i) => part.flatMap(([together]) => [...text.matchAll(together.whole)].map(match => [match.index, i])));
    found.sort((a, b) => a[0] - b[0]);
    const last = new Map();
    let least = Infinity;
    for (const [index, i] of found) {
      last.set(i, index);
      if (last.size === parts.length) least = Math.min(least, index - Math.min(...last.values()));
    }
    return least / 6;
  };
  const scattered = (entry, weights) => {
    const {text, kind, parts: its} = entry;
    const share = which => its.reduce((sum, part, i) => sum + weights[i] * part[which], 0);
    const title = share('title'), complete = its.every(({all}) => all > 0);
    if (!complete && title < 0.25) return 0;
    const near = complete ? Math.max(0, 1 - span(text) / 40) : 0;
    const value = 5 + 45 * title + 10 * share('place') + 10 * near + of_kind[kind] / 8;
    return demoted(complete ? value : 0.75 * value * share('all'), asked, entry);
  };

  for (const entry of index) {
    if (entry.plain) continue;
    const titles = [entry[1], ...entry[5]].map(plain), where = plain(entry[2]), text = plain(entry[3]);
    entry.plain = {titles, where, text, all: [...titles, where, text].join('\n'), kind: entry[4], late: entry[6]};
  }
  const rank = score => index.map(entry => [score(entry.plain), entry]).filter(([value]) => value > 0)
    .sort((a, b) => b[0] - a[0]).map(([, entry]) => entry);  // the sort is stable
  const phrases = alternatives.map(phrase => [phrase, pattern(phrase), phrase.split(' ').map(pattern)]);
  let weights = [];
  if (parts.length > 1) {
    const holds = parts.map(held);
    for (const entry of index) entry.plain.parts = holds.map(hold => hold(entry.plain));
    const rare = parts.map((_, i) => Math.log(1 + index.length / (1 + index.filter(entry => entry.plain.parts[i].all > 0).length)));
    weights = rare.map(value => value / rare.reduce((sum, x) => sum + x, 0));
  }
  const found = rank(entry => Math.max(parts.length > 1 ? scattered(entry, weights) : 0,
    ...phrases.map((phrase, i) => points(...phrase, entry) * (i === 0 ? 1 : 0.8))));
  if (found.length > 0) return found;
  const single = asked.split(' ').filter(word => word.length > 3).map(word => [word, pattern(word)]);
  return rank(entry => single.reduce((sum, [word, its]) => sum + points(word, its, [its], entry), 0));
}

if (typeof document !== 'undefined') (function () {
  const most = 40;  // results shown

  function element(name, text, parent) {
    const made = document.createElement(name);
    made.textContent = text;
    parent.append(made);
    return made;
  }

  // The text around the first word that is found, or its beginning.
  function excerpt(text, query) {
    const lower = text.toLowerCase(), places = [query, ...query.split(/\s+/)].map(word => lower.indexOf(word.toLowerCase()));
    const place = places.find(p => p >= 0) ?? 0, from = place < 50 ? 0 : lower.indexOf(' ', place - 50) + 1;
    return (from > 0 ? '… ' : '') + text.slice(from, from + 160) + (from + 160 < text.length ? ' …' : '');
  }

  function show(list, field) {
    const query = field.value.trim();
    list.replaceChildren();
    list.hidden = query === '';
    if (list.hidden) return;
    const place = field.getBoundingClientRect();
    list.style.top = place.bottom + 8 + 'px';
    list.style.maxHeight = `calc(100vh - ${place.bottom + 24}px)`;
    const found = giwa_search(query, giwa_index, giwa_synonyms);
    for (const [address, title, where, text] of found.slice(0, most)) {
      const link = element('a', '', list);
      link.href = address;
      element('b', title, link);
      element('small', where, link);
      if (text) element('span', excerpt(text, query), link);
    }
    if (found.length > most) element('p', `${found.length - most} more: another word leaves fewer`, list);
    if (found.length === 0) element('p', `Nothing has "${query}"`, list);
  }

  document.addEventListener('DOMContentLoaded', () => {
    const contents = document.querySelector('div.toc');
    contents?.querySelector('h3').addEventListener('click', () => contents.classList.toggle('open'));
    const list = element('div', '', document.body);
    list.id = 'found';
    list.hidden = true;
    const is_field = event => event.target.id === 'MSearchField';  // the menu makes a new field as the window changes
    const close = () => {
      list.hidden = true;
    };
    document.addEventListener('input', event => {
      if (!is_field(event)) return;
      if (typeof giwa_index !== 'undefined') return show(list, event.target);
      if (document.getElementById('search_index')) return;
      const script = element('script', '', document.head);
      script.id = 'search_index';
      script.onload = () => show(list, event.target);
      script.src = 'search/index.js';
    });
    document.addEventListener('keydown', event => {
      const links = [...list.querySelectorAll('a')], at = links.indexOf(document.activeElement);
      if (list.hidden || !(is_field(event) || at >= 0)) return;
      if (event.key === 'Escape') close();
      if (event.key === 'Enter' && at < 0 && links.length > 0) links[0].click();
      if (event.key === 'ArrowDown' && at + 1 < links.length) links[at + 1].focus();
      if (event.key === 'ArrowUp') (at > 0 ? links[at - 1] : document.getElementById('MSearchField')).focus();
      if (event.key.startsWith('Arrow')) event.preventDefault();
    });
    document.addEventListener('click', event => {
      if (!is_field(event) && (event.target.closest('#found a') || !list.contains(event.target))) close();
    });
    // Doxygen's own answers to the field: the query stays, and neither its list nor its choice of kinds opens.
    const focus = searchBox.OnSearchFieldFocus;
    searchBox.OnSearchFieldFocus = active => {
      if (active || document.getElementById('MSearchField').value === '') focus.call(searchBox, active);
    };
    searchBox.OnSearchFieldChange = searchBox.OnSearchSelectShow = () => false;
  });
})();
