/* Names and roles that unfold's templates lack: icons are hidden from screen readers, and controls that are only
   an icon, or react to a click without being a button, get a name, a role and the keyboard. */
(() => {
  const NAMES = { dock_to_right: 'Show or hide the pages', close: 'Close', cancel: 'Remove from sorting', arrow_back: 'Back' }
  const mark = root => {
    for (const icon of root.querySelectorAll('.material-symbols-outlined:not([aria-hidden="true"])')) {
      const handles = [...icon.attributes].some(({ name }) => name.startsWith('x-on:click') || name.startsWith('@click'))
      const control = handles ? icon : icon.closest('a, button, [x-on\\:click]')
      const text = icon.textContent.trim()
      if (control && !control.getAttribute('aria-label') && (handles || control.textContent.trim() === text)) {
        control.setAttribute('aria-label', control.title || NAMES[text] || text.replaceAll('_', ' '))
      }
      if (!handles) icon.setAttribute('aria-hidden', 'true')
    }
    for (const control of root.querySelectorAll('[x-on\\:click]:not(button, [href], [role], [id="changelist-filter-close"])')) {
      control.setAttribute('role', 'button')
      control.tabIndex = 0
      control.addEventListener('keydown', event => {
        if (event.target !== control || (event.key !== 'Enter' && event.key !== ' ')) return
        event.preventDefault()
        control.click()
      })
    }
  }
  document.addEventListener('DOMContentLoaded', () => mark(document))
  document.addEventListener('htmx:load', event => mark(event.detail.elt.parentElement ?? document))
})()
