// SPDX-License-Identifier: MIT
// The site's search: finds all words of a query in the pages, their headings and the names of the reference.
//
// cmake/search_index.py appends this file to Doxygen's search.js, whose search knows only how names and titles begin, and writes
// giwa_index, a list of [address, title, where it is, text], into search/index.js.
'use strict';
(function () {
  const most = 40;  // results shown

  // The entries that contain all words, best first: in the title before in the text, and there at the start of a word before inside
  // it, often before once.
  function search(query) {
    const words = query.toLowerCase().split(/\s+/).filter(Boolean), phrase = words.join(' ');
    const start = new RegExp('(?<![\\p{L}\\p{N}])' + phrase.replace(/[.*+?^${}()|[\]\\\/]/g, '\\$&'), 'gu');
    const score = ([, title, where, text]) => {
      title = title.toLowerCase();
      const all = [title, where, text].join('\n').toLowerCase();
      if (!words.every(word => all.includes(word))) return 0;
      const often = Math.min(9, (all.match(start) ?? []).length) / 10;
      if (title === phrase) return 6;
      if (title.match(start)) return 5;
      if (words.every(word => title.includes(word))) return 4;
      return often > 0 ? 2 + often : all.includes(phrase) ? 2 : 1;
    };
    const found = giwa_index.map(entry => [score(entry), entry]).filter(([points]) => points > 0);
    return found.sort((a, b) => b[0] - a[0]).map(([, entry]) => entry);  // the sort is stable: pages stay before names
  }

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
    const found = search(query);
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
