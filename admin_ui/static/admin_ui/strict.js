/* What lets unfold and htmx run under a Content-Security-Policy without unsafe-eval and unsafe-inline. Alpine's
   CSP build (admin_ui/vendored) reads simple expressions only and no globals: what it can't read is named here. */
(() => {
  Object.assign(htmx.config, { allowEval: false, includeIndicatorStyles: false })

  /* Expressions of unfold's templates, and what stands for them. */
  const INSTEAD = {
    "sidebarDesktopOpen = !sidebarDesktopOpen; localStorage.setItem('sidebarDesktopOpen', sidebarDesktopOpen ? '1' : '0');":
      'sidebarDesktopOpen = !sidebarDesktopOpen',
    'openSearchResults = true; currentIndex = 0': '$strict.beginSearch($data)',
    "openSearchResults = false; if ($refs.searchInput.value === '') { $refs.searchInput.blur() } else { $refs.searchInput.value = '' }":
      '$strict.endSearch($data, $refs.searchInput)',
    'if (!$event.metaKey && !$event.ctrlKey) selectItem(false, false)':
      '!$event.metaKey && !$event.ctrlKey && selectItem(false, false)',
    'if (!$event.metaKey && !$event.ctrlKey) selectItem(true, false)':
      '!$event.metaKey && !$event.ctrlKey && selectItem(true, false)',
    "activeTab && activeTab !== 'general' ? window.location.pathname + window.location.search + '#' + activeTab : window.location.pathname + window.location.search":
      '$strict.address(activeTab)',
    "'width: ' + changeListWidth + 'px'": "{width: changeListWidth + 'px'}"
  }
  const SIDEBAR = 'sidebarDesktopOpen'
  const body = () => ({
    activeTab: '',
    sidebarMobileOpen: false,
    sidebarDesktopOpen: localStorage.getItem(SIDEBAR) !== '0',
    init() {
      this.activeTab = getCurrentTab() || document.body.dataset.firstTab || ''
      this.$watch(SIDEBAR, open => localStorage.setItem(SIDEBAR, open ? '1' : '0'))
    }
  })
  const strict = () => ({
    beginSearch(data) { Object.assign(data, { openSearchResults: true, currentIndex: 0 }) },
    endSearch(data, input) {
      data.openSearchResults = false
      if (input.value === '') input.blur()
      else input.value = ''
    },
    address: tab => location.pathname + location.search + (tab && tab !== 'general' ? `#${tab}` : '')
  })

  const rewrite = root => {
    for (const element of [root, ...root.querySelectorAll('*')]) {
      for (const { name, value } of [...element.attributes]) {
        if (name.startsWith('x-') && INSTEAD[value.trim()]) element.setAttribute(name, INSTEAD[value.trim()])
      }
    }
  }

  document.addEventListener('alpine:init', () => {
    const first = /activeTab: '([^']*)'/.exec(document.body.getAttribute('x-data') ?? '')
    document.body.dataset.firstTab = first ? first[1] : ''
    document.body.setAttribute('x-data', 'body')
    document.body.removeAttribute('x-init')
    rewrite(document.documentElement)
    Alpine.data('body', body)
    for (const name of ['theme', 'searchForm', 'searchDropdown', 'searchCommand']) {
      Alpine.data(name, (...given) => window[name](...given))
    }
    Alpine.magic('strict', strict)
  })
  document.addEventListener('htmx:beforeProcessNode', event => rewrite(event.detail.elt ?? event.target))

  /* Places on a time line: `data-left`, `data-width`, in percent. */
  const place = root => {
    for (const mark of root.querySelectorAll('[data-left]')) {
      mark.style.left = `${mark.dataset.left}%`
      if ('width' in mark.dataset) mark.style.width = `${mark.dataset.width}%`
    }
  }
  document.addEventListener('DOMContentLoaded', () => place(document))
  document.addEventListener('htmx:load', event => place(event.detail.elt.parentElement ?? document))
  /* Conditions of a trigger and handlers in attributes would be code in a page, too. */
  setInterval(() => { if (!document.hidden) for (const one of document.querySelectorAll('[data-fresh]')) htmx.trigger(one, 'stale') }, 2000)
  for (const name of ['htmx:sendError', 'htmx:responseError']) {
    document.addEventListener(name, event => {
      if ('fresh' in event.target.dataset) event.target.classList.add('stale')
      const halted = event.target.dataset.halted
      if (halted) document.getElementById(halted).hidden = false
    })
  }
  document.addEventListener('htmx:afterSwap', event => {
    const opener = event.detail.target.id === 'modal-content' && document.getElementById('content-main')
    if (opener && 'opensModal' in opener.dataset) Alpine.$data(opener).openModal = true
  })
})()
